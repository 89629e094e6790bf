-- What commit 8f2dd5d left in PostgreSQL: five blocks of a stream of rows and of a stream of changes.

CREATE FUNCTION public.sqd_snapshot_balance_delete() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    ___sqd__at bigint := current_setting('sqd.snapshot_block_number')::bigint;
    ___sqd__of text := nullif(current_setting('sqd.snapshot_id', true), '');
    ___sqd__depth int := pg_trigger_depth();
    ___sqd__made bigint := coalesce(nullif(current_setting('sqd.nested', true), ''), '0');
    ___sqd__name text := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth;
    ___sqd__start bigint := nullif(current_setting(___sqd__name, true), '');
    ___sqd__inner bigint;
BEGIN
    IF ___sqd__start IS NULL THEN  -- a foreign key began it one level below
        ___sqd__name := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth + 1;
        ___sqd__start := coalesce(nullif(current_setting(___sqd__name, true), ''), '0');
    END IF;
    PERFORM set_config(___sqd__name, '', true);
    IF ___sqd__depth > 1 THEN
        ___sqd__inner := (___sqd__made + 1) * 100 + ___sqd__depth;
        PERFORM set_config('sqd.nested', (___sqd__made + 1)::text, true);
    END IF;
    IF ___sqd__made > ___sqd__start THEN
        DELETE FROM "public"."balance__snapshots" AS s USING "___sqd__old" AS r WHERE s."___sqd__block_number" = ___sqd__at AND s."___sqd__nested" / 100 > ___sqd__start AND (s."___sqd__nested" % 100 > ___sqd__depth) AND s."who" = r."who";
    END IF;
    IF EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at) THEN
        INSERT INTO "public"."balance__snapshots" ("who", "value", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", "value", 'DELETE', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__old" AS r WHERE NOT EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at AND s."who" = r."who");
    ELSE
        INSERT INTO "public"."balance__snapshots" ("who", "value", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", "value", 'DELETE', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__old" AS r;
    END IF;
    RETURN NULL;
END$$;
CREATE FUNCTION public.sqd_snapshot_balance_insert() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    ___sqd__at bigint := current_setting('sqd.snapshot_block_number')::bigint;
    ___sqd__of text := nullif(current_setting('sqd.snapshot_id', true), '');
    ___sqd__depth int := pg_trigger_depth();
    ___sqd__made bigint := coalesce(nullif(current_setting('sqd.nested', true), ''), '0');
    ___sqd__name text := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth;
    ___sqd__start bigint := nullif(current_setting(___sqd__name, true), '');
    ___sqd__inner bigint;
BEGIN
    IF ___sqd__start IS NULL THEN  -- a foreign key began it one level below
        ___sqd__name := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth + 1;
        ___sqd__start := coalesce(nullif(current_setting(___sqd__name, true), ''), '0');
    END IF;
    PERFORM set_config(___sqd__name, '', true);
    IF ___sqd__depth > 1 THEN
        ___sqd__inner := (___sqd__made + 1) * 100 + ___sqd__depth;
        PERFORM set_config('sqd.nested', (___sqd__made + 1)::text, true);
    END IF;
    IF ___sqd__made > ___sqd__start THEN
        DELETE FROM "public"."balance__snapshots" AS s USING "___sqd__new" AS r WHERE s."___sqd__block_number" = ___sqd__at AND s."___sqd__nested" / 100 > ___sqd__start AND (s."___sqd__nested" % 100 > ___sqd__depth) AND s."who" = r."who";
    END IF;
    IF EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at) THEN
        INSERT INTO "public"."balance__snapshots" ("who", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", 'INSERT', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__new" AS r WHERE NOT EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at AND s."who" = r."who");
    ELSE
        INSERT INTO "public"."balance__snapshots" ("who", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", 'INSERT', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__new" AS r;
    END IF;
    RETURN NULL;
END$$;
CREATE FUNCTION public.sqd_snapshot_balance_key() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM set_config('sqd.key_changed_' || TG_RELID, 'true', true);
    RETURN NULL;
END$$;
CREATE FUNCTION public.sqd_snapshot_balance_start() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM set_config('sqd.start_' || TG_RELID || lower(TG_OP) || pg_trigger_depth(), coalesce(nullif(current_setting('sqd.nested', true), ''), '0'), true);
    RETURN NULL;
END$$;
CREATE FUNCTION public.sqd_snapshot_balance_update() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    ___sqd__at bigint := current_setting('sqd.snapshot_block_number')::bigint;
    ___sqd__of text := nullif(current_setting('sqd.snapshot_id', true), '');
    ___sqd__depth int := pg_trigger_depth();
    ___sqd__made bigint := coalesce(nullif(current_setting('sqd.nested', true), ''), '0');
    ___sqd__name text := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth;
    ___sqd__start bigint := nullif(current_setting(___sqd__name, true), '');
    ___sqd__inner bigint;
BEGIN
    IF ___sqd__start IS NULL THEN  -- a foreign key began it one level below
        ___sqd__name := 'sqd.start_' || TG_RELID || lower(TG_OP) || ___sqd__depth + 1;
        ___sqd__start := coalesce(nullif(current_setting(___sqd__name, true), ''), '0');
    END IF;
    PERFORM set_config(___sqd__name, '', true);
    IF ___sqd__depth > 1 THEN
        ___sqd__inner := (___sqd__made + 1) * 100 + ___sqd__depth;
        PERFORM set_config('sqd.nested', (___sqd__made + 1)::text, true);
    END IF;
    IF ___sqd__made > ___sqd__start THEN
        DELETE FROM "public"."balance__snapshots" AS s USING "___sqd__old" AS r WHERE s."___sqd__block_number" = ___sqd__at AND s."___sqd__nested" / 100 > ___sqd__start AND (s."___sqd__nested" % 100 > ___sqd__depth OR s."___sqd__operation" = 'DELETE') AND s."who" = r."who";
        DELETE FROM "public"."balance__snapshots" AS s USING "___sqd__new" AS r WHERE s."___sqd__block_number" = ___sqd__at AND s."___sqd__nested" / 100 > ___sqd__start AND (s."___sqd__nested" % 100 > ___sqd__depth OR s."___sqd__operation" = 'DELETE') AND s."who" = r."who";
    END IF;
    IF EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at) THEN
        INSERT INTO "public"."balance__snapshots" ("who", "value", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", "value", 'UPDATE', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__old" AS r WHERE NOT EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at AND s."who" = r."who");
    ELSE
        INSERT INTO "public"."balance__snapshots" ("who", "value", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", "value", 'UPDATE', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__old" AS r;
    END IF;
    IF current_setting('sqd.key_changed_' || TG_RELID, true) = 'true' THEN
        INSERT INTO "public"."balance__snapshots" ("who", "___sqd__operation", "___sqd__block_number", "___sqd__id", "___sqd__nested") SELECT "who", 'INSERT', ___sqd__at, ___sqd__of, ___sqd__inner FROM "___sqd__new" AS r WHERE NOT EXISTS (SELECT FROM "public"."balance__snapshots" AS s WHERE s."___sqd__block_number" = ___sqd__at AND s."who" = r."who") AND NOT EXISTS (SELECT FROM "___sqd__old" AS o WHERE o."who" = r."who");
    END IF;
    RETURN NULL;
END$$;
CREATE FUNCTION public.sqd_snapshot_refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% on %', TG_OP, TG_RELID::regclass USING ERRCODE = TG_ARGV[0];
END$$;
CREATE TABLE public.balance (
    who text NOT NULL,
    value bigint
);
CREATE TABLE public.balance__snapshots (
    who text NOT NULL,
    value bigint,
    ___sqd__operation text NOT NULL,
    ___sqd__block_number bigint NOT NULL,
    ___sqd__id text,
    ___sqd__nested bigint
);
CREATE TABLE public.cursors (
    id text NOT NULL,
    cursor text,
    block_num bigint,
    block_id text
);
CREATE TABLE public.log (
    block_number bigint,
    v text
);
CREATE TABLE public.owner (
    id text NOT NULL,
    n numeric,
    note text
);
CREATE TABLE public.substreams_history (
    id bigint NOT NULL,
    op character(1),
    table_name text,
    pk text,
    prev_value text,
    block_num bigint,
    stream_id text NOT NULL
);
CREATE SEQUENCE public.substreams_history_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.substreams_history_id_seq OWNED BY public.substreams_history.id;
CREATE TABLE public.sync (
    id text NOT NULL,
    current_number numeric NOT NULL,
    current_hash text NOT NULL,
    "current_timestamp" timestamp with time zone,
    finalized jsonb,
    rollback_chain jsonb
);
CREATE TABLE public.sync__tables (
    id text NOT NULL,
    table_schema text NOT NULL,
    table_name text NOT NULL,
    undo text NOT NULL,
    key_columns jsonb NOT NULL,
    block_column text NOT NULL,
    deferred boolean NOT NULL
);
ALTER TABLE ONLY public.substreams_history ALTER COLUMN id SET DEFAULT nextval('public.substreams_history_id_seq'::regclass);
INSERT INTO public.balance VALUES ('b1', 10);
INSERT INTO public.balance VALUES ('b3', 30);
INSERT INTO public.balance VALUES ('b4', 40);
INSERT INTO public.balance VALUES ('a', 5);
INSERT INTO public.balance VALUES ('b5', 50);
INSERT INTO public.balance__snapshots VALUES ('a', 2, 'UPDATE', 3, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('b3', NULL, 'INSERT', 3, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('a', 3, 'UPDATE', 4, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('b4', NULL, 'INSERT', 4, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('b2', 20, 'DELETE', 4, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('a', 4, 'UPDATE', 5, 'rows', NULL);
INSERT INTO public.balance__snapshots VALUES ('b5', NULL, 'INSERT', 5, 'rows', NULL);
INSERT INTO public.cursors VALUES ('changes', '{"number":5,"hash":"a5","timestamp":1005}', 5, 'a5');
INSERT INTO public.log VALUES (1, 'v1');
INSERT INTO public.log VALUES (2, 'v2');
INSERT INTO public.log VALUES (3, 'v3');
INSERT INTO public.log VALUES (4, 'v4');
INSERT INTO public.log VALUES (5, 'v5');
INSERT INTO public.owner VALUES ('c', 5, NULL);
INSERT INTO public.owner VALUES ('d', -1, '');
INSERT INTO public.substreams_history VALUES (1, 'U', 'public.owner', '{"id":"a"}', '{"id":"a","n":7,"note":"x"}', 3, 'changes');
INSERT INTO public.substreams_history VALUES (2, 'I', 'public.owner', '{"id":"c"}', NULL, 3, 'changes');
INSERT INTO public.substreams_history VALUES (3, 'D', 'public.owner', '{"id":"b"}', '{"id":"b","n":2,"note":"y"}', 4, 'changes');
INSERT INTO public.substreams_history VALUES (4, 'U', 'public.owner', '{"id":"c"}', '{"id":"c","n":1000000000000000000000000000000,"note":null}', 4, 'changes');
INSERT INTO public.substreams_history VALUES (5, 'D', 'public.owner', '{"id":"a"}', '{"id":"a","n":8,"note":"it''s \"quoted\""}', 5, 'changes');
INSERT INTO public.substreams_history VALUES (6, 'I', 'public.owner', '{"id":"d"}', NULL, 5, 'changes');
INSERT INTO public.sync VALUES ('changes', 1, 'a1', '1970-01-01 00:16:41+00', '{"hash": "a1", "number": 1, "timestamp": 1001}', '[{"hash": "a1", "number": 1, "timestamp": 1001}]');
INSERT INTO public.sync VALUES ('changes', 2, 'a2', '1970-01-01 00:16:42+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[]');
INSERT INTO public.sync VALUES ('changes', 3, 'a3', '1970-01-01 00:16:43+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a3", "number": 3, "timestamp": 1003}]');
INSERT INTO public.sync VALUES ('changes', 4, 'a4', '1970-01-01 00:16:44+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a4", "number": 4, "timestamp": 1004}]');
INSERT INTO public.sync VALUES ('changes', 5, 'a5', '1970-01-01 00:16:45+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a5", "number": 5, "timestamp": 1005}]');
INSERT INTO public.sync VALUES ('rows', 1, 'a1', '1970-01-01 00:16:41+00', '{"hash": "a1", "number": 1, "timestamp": 1001}', '[{"hash": "a1", "number": 1, "timestamp": 1001}]');
INSERT INTO public.sync VALUES ('rows', 2, 'a2', '1970-01-01 00:16:42+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[]');
INSERT INTO public.sync VALUES ('rows', 3, 'a3', '1970-01-01 00:16:43+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a3", "number": 3, "timestamp": 1003}]');
INSERT INTO public.sync VALUES ('rows', 4, 'a4', '1970-01-01 00:16:44+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a4", "number": 4, "timestamp": 1004}]');
INSERT INTO public.sync VALUES ('rows', 5, 'a5', '1970-01-01 00:16:45+00', '{"hash": "a2", "number": 2, "timestamp": 1002}', '[{"hash": "a5", "number": 5, "timestamp": 1005}]');
INSERT INTO public.sync__tables VALUES ('rows', 'public', 'log', 'append_only', '[]', 'block_number', false);
INSERT INTO public.sync__tables VALUES ('rows', 'public', 'balance', 'keyed', '["who"]', 'block_number', false);
SELECT pg_catalog.setval('public.substreams_history_id_seq', 6, true);
ALTER TABLE ONLY public.balance__snapshots
    ADD CONSTRAINT balance__snapshots_pkey PRIMARY KEY (___sqd__block_number, who);
ALTER TABLE ONLY public.balance
    ADD CONSTRAINT balance_pkey PRIMARY KEY (who);
ALTER TABLE ONLY public.cursors
    ADD CONSTRAINT cursors_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.owner
    ADD CONSTRAINT owner_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.substreams_history
    ADD CONSTRAINT substreams_history_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sync__tables
    ADD CONSTRAINT sync__tables_pkey PRIMARY KEY (id, table_schema, table_name);
ALTER TABLE ONLY public.sync
    ADD CONSTRAINT sync_pk PRIMARY KEY (id, current_number);
CREATE INDEX log_block_number_idx ON public.log USING btree (block_number);
CREATE INDEX substreams_history_block_num ON public.substreams_history USING btree (stream_id, block_num);
CREATE TRIGGER sqd_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.log FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_refuse('HW112');
CREATE TRIGGER sqd_snapshot_delete AFTER DELETE ON public.balance REFERENCING OLD TABLE AS ___sqd__old FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_balance_delete();
CREATE TRIGGER sqd_snapshot_insert AFTER INSERT ON public.balance REFERENCING NEW TABLE AS ___sqd__new FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_balance_insert();
CREATE TRIGGER sqd_snapshot_key AFTER UPDATE OF who ON public.balance FOR EACH ROW WHEN (((old.who IS DISTINCT FROM new.who) AND (current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text])))) EXECUTE FUNCTION public.sqd_snapshot_balance_key();
CREATE TRIGGER sqd_snapshot_start BEFORE INSERT OR DELETE OR UPDATE ON public.balance FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_balance_start();
CREATE TRIGGER sqd_snapshot_truncate BEFORE TRUNCATE ON public.balance FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_refuse('HW113');
CREATE TRIGGER sqd_snapshot_update AFTER UPDATE ON public.balance REFERENCING OLD TABLE AS ___sqd__old NEW TABLE AS ___sqd__new FOR EACH STATEMENT WHEN ((current_setting('sqd.snapshot_enabled'::text, true) = ANY (ARRAY['true'::text, 'on'::text, 't'::text, '1'::text]))) EXECUTE FUNCTION public.sqd_snapshot_balance_update();
