"""What a fit is worth: error on held-back steps, terms that a log can tell, what does not fit."""
