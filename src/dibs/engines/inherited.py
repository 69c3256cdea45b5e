"""Connections that came through fork().

They must be neither used nor closed: closing one would end the parent's session, or drop its locks on a
SQLite file. They are kept here, out of reach.
"""

inherited: list[object] = []
