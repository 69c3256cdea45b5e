"""What stores without tables have in common: there is nothing to migrate, and nothing can be amiss."""

from dibs.engines.sql.schema_files import schema_version
from dibs.engines.sql.schema_problems import SchemaProblem


class Tableless:
    def open(self) -> None: ...
    async def open_async(self) -> None: ...

    def migrate(self) -> list[int]:
        self.open()
        return []

    async def migrate_async(self) -> list[int]:
        await self.open_async()
        return []

    def schema_version(self) -> int:
        return schema_version("postgresql")  # always of the newest shape

    async def schema_version_async(self) -> int:
        return self.schema_version()

    def check_schema(self) -> list[SchemaProblem]:
        return []

    async def check_schema_async(self) -> list[SchemaProblem]:
        return []
