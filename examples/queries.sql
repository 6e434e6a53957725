-- For queries that are slow, stuck or stale: over the views that docs/observe.md#queries makes.

-- Who is stale, and since when?
-- known_since: when the first cache noticed. A row that stays is of an idle or killed reader or writer.
WITH elections AS (
  SELECT cluster_id, time, change.* FROM refresh_events LATERAL VIEW explode(leaders_changed) AS change
)
SELECT cached.role, cached.executor_id, cached.host, cached.pid, cached.topic, cached.partition,
  cached.leader_id AS cached_leader, live.leader_id AS leader_now, cached.age_at_most_ms, min(elections.time) AS known_since
FROM caches AS cached
JOIN partitions AS live USING (cluster_id, topic, partition)
LEFT JOIN elections ON elections.cluster_id = cached.cluster_id AND elections.topic = cached.topic
  AND elections.partition = cached.partition AND elections.new_epoch > cached.leader_epoch
WHERE cached.leader_epoch < live.leader_epoch OR cached.topic_id <> live.topic_id
GROUP BY ALL;

-- Why are caches refreshed, and how often?
-- Normal: max_age, bootstrap. Elections: not_leader, fenced_epoch, replaced_leader. Dead brokers: connection_lost.
-- Hanging ones, or coordinators that wait for hanging followers: request_timeout.
SELECT date_trunc('minute', time) AS minute, reason, count(*) AS refreshes, count_if(outcome = 'failed') AS failed
FROM refresh_events
WHERE kind = 'refresh'
GROUP BY ALL
ORDER BY minute DESC, refreshes DESC;

-- Which brokers respond slowly, and what do refreshes cost them?
-- The first response to a cache includes connecting. A null broker_id is a bootstrap address.
SELECT broker_id, broker_host, count(*) AS responses, percentile(latency_ms, 0.5) AS p50_ms,
  percentile(latency_ms, 0.95) AS p95_ms, max(latency_ms) AS max_ms,
  sum(request_bytes + response_bytes) AS bytes, sum(throttle_ms) AS throttled_ms
FROM refresh_events
WHERE kind = 'refresh' AND outcome <> 'failed'
GROUP BY ALL
ORDER BY p95_ms DESC;

-- Which recoveries took longest?
-- Hundreds of ms: an election. Seconds: a crashed broker.
SELECT time, recovery_ms, reason, cause_topic, cause_partition, cause_node_id, executor_id, query_id, batch_id
FROM refresh_events
WHERE recovery_ms IS NOT NULL
ORDER BY recovery_ms DESC
LIMIT 20;

-- Which executors disagree now?
-- The lower epoch after the @ is stale, unless the topic was recreated.
SELECT cluster_id, topic, partition, max(leader_epoch) AS newest_epoch,
  array_sort(collect_set(concat_ws(' ', role, executor_id, pid, concat(leader_id, '@', leader_epoch)))) AS views
FROM caches
GROUP BY cluster_id, topic, partition
HAVING count(DISTINCT leader_epoch) > 1 OR count(DISTINCT topic_id) > 1;

-- How many caches are born?
-- More than the cores of an executor: workers do not last, see docs/deployment.md#memory-and-workers.
SELECT executor_id, host, date_trunc('hour', time) AS hour, count(*) AS caches, count(DISTINCT pid) AS processes
FROM refresh_events
WHERE kind = 'born' AND role IN ('reader', 'writer')
GROUP BY ALL
ORDER BY caches DESC;

-- Which events are lost?
-- Dropped: full disk or unreachable topic. Others: deleted with old files.
SELECT cache_id, role, executor_id, pid, max(sequence) - count(*) AS missing, sum(dropped_before) AS counted_as_dropped
FROM refresh_events
GROUP BY ALL
HAVING missing > 0
ORDER BY missing DESC;

-- Who fetches how much, and who is throttled?
-- throttled_ms above 0: a quota. For writes: produces and produce_throttle_ms.
WITH counted AS (
  SELECT executor_id, fetches, sum(fetch_throttle_ms) OVER (PARTITION BY executor_id) AS throttled_ms FROM refresh_events
)
SELECT executor_id, fetched.broker_id, sum(fetched.requests) AS requests, sum(fetched.response_bytes) AS bytes,
  throttled_ms
FROM counted LATERAL VIEW explode(fetches) AS fetched
GROUP BY ALL
ORDER BY bytes DESC;

-- How long do exactly-once commits take?
-- copied_records above 0: transactions timed out before their commit.
SELECT transactional_id, kind, count(*) AS batches, sum(transactions) AS transactions,
  percentile(transactions_ms, 0.5) AS p50_ms, max(transactions_ms) AS max_ms, sum(copied_records) AS copied_records
FROM refresh_events
WHERE reason = 'transaction'
GROUP BY ALL
ORDER BY max_ms DESC;

-- What was lost, or recreated?
-- Losses with their cause, and topics with their ids.
SELECT time, 'recreated' AS what, again.topic AS topic, NULL AS partition,
  concat(again.old_id, ' to ', again.new_id) AS detail
FROM refresh_events LATERAL VIEW explode(topics_recreated) AS again
UNION ALL
SELECT time, 'lost', cause_topic, cause_partition,
  concat('from offset ', lost_from_offset, ' to ', coalesce(string(lost_until_offset), 'unknown'), ': ', error)
FROM refresh_events
WHERE kind = 'data_loss'
ORDER BY time DESC;

-- What is malformed, and does the registry respond?
-- A task has one event for each partition and column, however many records are malformed.
SELECT kind, reason, outcome, cause_topic, cause_partition, malformed_column, schema_subject, count(*) AS events,
  sum(malformed_records) AS records, percentile(latency_ms, 0.95) AS p95_ms, max_by(error, time) AS last_error
FROM refresh_events
WHERE kind IN ('malformed_records', 'schema_lookup')
GROUP BY ALL
ORDER BY records DESC NULLS LAST, events DESC;

-- Which partitions lag behind?
-- One leader: look at the broker. All partitions: the query is too slow.
SELECT topic, partition, live.leader_id, records_behind, seconds_behind
FROM lag JOIN partitions AS live USING (topic, partition)
ORDER BY records_behind DESC;
