"""Steps of a training log under our column names, cleaned, with the lengths that its figures leave open."""
