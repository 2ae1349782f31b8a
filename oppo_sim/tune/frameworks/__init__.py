"""The choice in the words of other frameworks, and what each of them can do."""
