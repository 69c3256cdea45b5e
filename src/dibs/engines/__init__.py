"""The stores: each engine answers the questions of `dibs.operations.questions` in its own words."""
