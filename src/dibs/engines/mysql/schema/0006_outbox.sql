-- Messages that are written with your data and published after the commit, one row per target broker; and the
-- messages that a consumer of ours has dealt with. The same tables as `outbox.table(metadata)` describes.
--
-- `position` is the order of publishing within a key. `open_broker` names the broker as long as a message is still
-- to be published: claims read only those, however many were published before.
create table if not exists dibs_outbox (
    position     bigint not null auto_increment,
    message_id   varchar(36) not null,
    broker       varchar(200) not null,
    topic        varchar(200) not null,
    message_key  varchar(200),
    payload      longtext not null,
    headers      longtext not null,
    status       varchar(20) not null,
    attempts     integer not null,
    max_attempts integer not null,
    token        bigint,
    locked_by    varchar(200),
    locked_until datetime(6),
    available_at datetime(6) not null,
    created_at   datetime(6) not null,
    published_at datetime(6),
    error        longtext,
    open_broker  varchar(200) generated always as
        (case when status in ('pending', 'processing', 'failed') then broker end) stored,
    primary key (position),
    unique key dibs_outbox_message (message_id, broker),
    key dibs_outbox_open (open_broker, position),
    key dibs_outbox_key (open_broker, message_key, position),
    key dibs_outbox_published (published_at, position),
    key dibs_outbox_abandoned (open_broker, published_at, position)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

create table if not exists dibs_inbox (
    consumer   varchar(200) not null,
    message_id varchar(200) not null,
    mark       varchar(36) not null,
    seen_at    datetime(6) not null,
    primary key (consumer, message_id),
    key dibs_inbox_seen (seen_at)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
