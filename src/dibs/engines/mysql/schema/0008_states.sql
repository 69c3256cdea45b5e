-- What did not succeed is looked for by its state (`dibs jobs list --state failed`, `retry_many`), and is rare.
-- There are no partial indexes here, and a column that is null for the others has entries as well. So this is the
-- smallest there is: a state is one byte, and those who succeed add theirs, in the order of ids, at its end.
alter table dibs_finished add key /*M! if not exists */ dibs_finished_state (state);
