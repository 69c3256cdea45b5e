"""What fits dibs into other people's frameworks. Each module needs an extra; importing dibs imports none."""
