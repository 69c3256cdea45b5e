"""What `dibs serve` serves: the routes of `dibs.integrations.fastapi`, behind tokens, ready for a network."""

from dibs.integrations.service.access import Access
from dibs.integrations.service.serving import make_service

__all__ = ["Access", "make_service"]
