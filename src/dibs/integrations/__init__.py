"""dibs in other frameworks. Each module needs an extra; importing dibs imports none of them."""
