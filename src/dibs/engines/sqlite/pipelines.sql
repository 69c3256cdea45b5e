-- SQLite's words for pipelines where they are its own (ADR 18).

-- name: insert_parents
insert into dibs_parents (child, place, parent)
select json_extract(edge.value, '$[0]'), json_extract(edge.value, '$[1]'), json_extract(edge.value, '$[2]')
from json_each(:edges) edge
