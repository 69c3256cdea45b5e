"""The stores: each engine answers the questions of `dibs.contract` in its own words."""
