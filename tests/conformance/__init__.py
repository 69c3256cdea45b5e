"""What every engine answers alike: a file per verb."""
