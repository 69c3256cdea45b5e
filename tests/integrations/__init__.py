"""Django, Alembic, SQLAlchemy and OpenTelemetry with dibs in them."""
