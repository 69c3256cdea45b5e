alter table dibs_workers drop column version;
