"""`dibs verify`: a torture test on the user's own database."""
