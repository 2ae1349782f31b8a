"""The shipped policies, one a file: settings, class, and what it is. ``registry.py`` finds them by itself."""
