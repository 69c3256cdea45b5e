-- Which store this is: how two addresses of one store are told from two stores.
create table dibs_identity (
    one integer not null primary key check (one = 1),
    id  uuid not null
);

-- Jobs between two stores. Way 'out': a job that left for that store and is not known to be there; it is all
-- here, as text. Way 'in': one that came from that store, which may not know it yet.
create table dibs_moving (
    id    uuid not null,
    way   text not null,
    store uuid not null,
    job   text,
    primary key (id, way, store)
);
