"""One module a framework or serving system; each has an ``IMPORTER``."""
