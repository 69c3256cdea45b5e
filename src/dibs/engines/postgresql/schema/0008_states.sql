-- What did not succeed is looked for by its state (`dibs jobs list --state failed`, `retry_many`), and is rare:
-- those who succeed are not in this index, and pay nothing for it. On a large store make it beforehand, with
-- `create index concurrently`; this then finds it there.
create index if not exists dibs_finished_state on dibs_finished (state, id) where state <> 'succeeded';
