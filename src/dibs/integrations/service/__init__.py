"""What `dibs serve` serves: the routes of `dibs.integrations.fastapi`, behind tokens, ready for a network."""

from dibs.integrations.service.app import make_service
from dibs.integrations.service.auth import Access

__all__ = ["Access", "make_service"]
