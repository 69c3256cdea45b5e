-- Messages that are written with your data and published after the commit, one row per target broker; and the
-- messages that a consumer of ours has dealt with. The same tables as `outbox.table(metadata)` describes.
--
-- `position` is the order of publishing within a key. `open_broker` names the broker as long as a message is still
-- to be published: claims read only those, however many were published before.
create table if not exists dibs_outbox (
    position     integer not null primary key autoincrement,
    message_id   text not null,
    broker       text not null,
    topic        text not null,
    message_key  text,
    payload      text not null,
    headers      text not null,
    status       text not null,
    attempts     integer not null,
    max_attempts integer not null,
    token        integer,
    locked_by    text,
    locked_until integer,
    available_at integer not null,
    created_at   integer not null,
    published_at integer,
    error        text,
    open_broker  text generated always as
        (case when status in ('pending', 'processing', 'failed') then broker end) stored
);

create unique index if not exists dibs_outbox_message on dibs_outbox (message_id, broker);
create index if not exists dibs_outbox_open on dibs_outbox (open_broker, position)
    where open_broker is not null;
create index if not exists dibs_outbox_key on dibs_outbox (open_broker, message_key, position)
    where open_broker is not null;
create index if not exists dibs_outbox_published on dibs_outbox (published_at, position)
    where published_at is not null;
create index if not exists dibs_outbox_abandoned on dibs_outbox (open_broker, published_at, position)
    where open_broker is null and published_at is null;

create table if not exists dibs_inbox (
    consumer   text not null,
    message_id text not null,
    mark       text not null,
    seen_at    integer not null,
    primary key (consumer, message_id)
);

create index if not exists dibs_inbox_seen on dibs_inbox (seen_at);
