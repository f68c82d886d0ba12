// kafkajs behind the small command line that every foreign peer here has (see clients.py): produce, consume and admin
// against any bootstrap, records as JSON lines on standard input and output.
"use strict";

const fs = require("node:fs");
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require("kafkajs");

const [command, bootstrap, topic, ...rest] = process.argv.slice(2);
const options = {};
for (let i = 0; i + 1 < rest.length; i += 2) options[rest[i].replace(/^--/, "")] = rest[i + 1];

const client = new Kafka({
  clientId: "moldau-interop",
  brokers: bootstrap.split(","),
  logLevel: logLevel.ERROR,
  retry: { initialRetryTime: 100, retries: 8 },
  ...security(),
});

// --ca FILE for TLS; --sasl MECHANISM --user NAME --password SECRET (or a token) to log in.
function security() {
  const settings = {};
  if (options.ca !== undefined) settings.ssl = { ca: [fs.readFileSync(options.ca, "utf8")] };
  if (options.sasl !== undefined) {
    settings.sasl = { mechanism: options.sasl.toLowerCase(), username: options.user, password: options.password };
    if (options.sasl === "OAUTHBEARER") settings.sasl.oauthBearerProvider = async () => ({ value: options.password });
  }
  return settings;
}

const print = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const text = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString("utf8"));

function messagesFromInput() {
  const lines = fs.readFileSync(0, "utf8").split("\n").filter((line) => line !== "");
  return lines.map((line) => {
    const given = JSON.parse(line);
    const message = { key: given.key ?? null, value: given.value ?? null };
    if (given.partition !== undefined) message.partition = given.partition;
    if (given.timestamp !== undefined) message.timestamp = String(given.timestamp);
    message.headers = Object.fromEntries(given.headers ?? []);
    return message;
  });
}

async function produce() {
  const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP };
  const compression = codecs[options.codec ?? "none"];
  if (compression === undefined) throw new Error(`kafkajs has no codec ${options.codec} of its own`);
  const transactionalId = options["transactional-id"];
  const idempotent = transactionalId !== undefined || options.idempotent === "true";
  const producer = client.producer({ transactionalId, idempotent, maxInFlightRequests: idempotent ? 1 : undefined });
  await producer.connect();
  const batch = { topic, messages: messagesFromInput(), compression, acks: Number((options.acks ?? "all").replace("all", "-1")) };
  let results;
  if (transactionalId === undefined) {
    results = await producer.send(batch);
  } else {
    const transaction = await producer.transaction();
    results = await transaction.send(batch);
    await (options.end === "abort" ? transaction.abort() : transaction.commit());
  }
  // kafkajs tells the base offset of each partition's batch only: one line per partition.
  for (const result of results) print({ partition: result.partition, offset: Number(result.baseOffset) });
  await producer.disconnect();
}

async function consume() {
  const wanted = Number(options.max);
  if (!Number.isInteger(wanted)) throw new Error("--max is needed: this peer reads a given number of records");
  const consumer = client.consumer({
    // kafkajs always reads through a group.
    groupId: options.group ?? `moldau-interop-${process.pid}-${Date.now()}`,
    readUncommitted: (options.isolation ?? "read_uncommitted") === "read_uncommitted",
    maxWaitTimeInMs: 200,
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  let seen = 0;
  await new Promise((resolve, reject) => {
    const timeoutMs = Number(options["timeout-ms"] ?? 30000);
    const timer = setTimeout(() => reject(new Error(`timeout: ${seen} records so far`)), timeoutMs);
    // It begins again by itself after what passes (a coordinator that is still loading).
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
    const eachMessage = async ({ partition, message }) => {
      if (seen >= wanted) return;
      seen += 1;
      const headers = Object.entries(message.headers ?? {}).map(([name, value]) => [name, text(value)]);
      print({
        partition,
        offset: Number(message.offset),
        timestamp: Number(message.timestamp),
        key: text(message.key),
        value: text(message.value),
        headers,
      });
      if (seen === wanted) {
        clearTimeout(timer);
        resolve();
      }
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return { failure: error.type ?? error.errors?.[0]?.type ?? String(error) };
  }
  throw new Error("no failure");
}

// Walks through the admin API on a topic that does not exist yet, one JSON line per step, nothing in it that differs between
// two healthy single-node clusters.
async function admin() {
  const connection = client.admin();
  await connection.connect();
  const group = `${topic}-admin`;
  const first = Date.now(); // recent, so that retention leaves the records alone
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const steps = {
    create_topic: async () => ({
      created: await connection.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: -1 }] }),
    }),
    create_topic_again: async () => ({
      // kafkajs turns TOPIC_ALREADY_EXISTS into false.
      created: await connection.createTopics({ topics: [{ topic, numPartitions: 2 }] }),
    }),
    create_topic_wrongly: () => failure(connection.createTopics({ topics: [{ topic: "no such/name", numPartitions: 2 }] })),
    list_topics: async () => ({ listed: (await connection.listTopics()).includes(topic) }),
    describe_topic: async () => {
      const { topics } = await connection.fetchTopicMetadata({ topics: [topic] });
      return { partitions: topics[0].partitions.length, errors: topics[0].partitions.map((p) => p.partitionErrorCode) };
    },
    configs: async () => {
      const configEntries = [{ name: "max.message.bytes", value: "2000000" }];
      await connection.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] });
      const names = ["max.message.bytes", "retention.ms"];
      const describe = async () => {
        const described = await connection.describeConfigs({ resources: [{ ...resource, configNames: names }], includeSynonyms: false });
        return described.resources[0].configEntries;
      };
      // A broker answers from its own view of the cluster, which may be a moment behind what the controller has.
      const shown = (found) => found.some((e) => e.configName === "max.message.bytes" && e.configValue === "2000000");
      let entries = await describe();
      for (let tries = 0; !shown(entries) && tries < 400; tries++) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        entries = await describe();
      }
      return Object.fromEntries(entries.map((e) => [e.configName, `${e.configValue} ${e.configSource}`]).sort());
    },
    create_partitions: async () => ({
      done: await connection.createPartitions({ topicPartitions: [{ topic, count: 3 }] }),
    }),
    produce: async () => {
      const producer = client.producer({ allowAutoTopicCreation: false });
      await producer.connect();
      const messages = Array.from({ length: 10 }, (_, i) => ({ partition: 0, key: "k", value: "v", timestamp: String(first + i) }));
      const sent = await producer.send({ topic, messages });
      await producer.disconnect();
      return { offset: sent[0].baseOffset };
    },
    offsets: async () => {
      const byPartition = (list) => list.map((o) => ({ ...o })).sort((a, b) => a.partition - b.partition);
      return {
        ends: byPartition(await connection.fetchTopicOffsets(topic)),
        for_timestamp: byPartition(await connection.fetchTopicOffsetsByTimestamp(topic, first + 4)),
      };
    },
    delete_records: async () => {
      await connection.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "4" }] });
      const offsets = await connection.fetchTopicOffsets(topic);
      return { low: offsets.find((o) => o.partition === 0).low };
    },
    group_offsets: async () => {
      await connection.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: "5" }] });
      const fetched = await connection.fetchOffsets({ groupId: group, topics: [topic] });
      const described = await connection.describeGroups([group]);
      await connection.deleteGroups([group]);
      return { offset: fetched[0].partitions.find((p) => p.partition === 0).offset, state: described.groups[0].state };
    },
    cluster: async () => {
      const { brokers, controller, clusterId } = await connection.describeCluster();
      return { brokers: brokers.length, has_controller: controller !== null, has_cluster_id: clusterId !== "" };
    },
    delete_topic: async () => {
      await connection.deleteTopics({ topics: [topic] });
      return { listed: (await connection.listTopics()).includes(topic) };
    },
  };
  for (const [step, run] of Object.entries(steps)) {
    try {
      print({ step, ...(await run()) });
    } catch (error) {
      print({ step, error: String(error) });
    }
  }
  await connection.disconnect();
}

const commands = { produce, consume, admin };
if (!commands[command] || !topic) {
  console.error("usage: peer.js produce|consume|admin BOOTSTRAP TOPIC [--option value]...");
  process.exit(64);
}
commands[command]().catch((error) => {
  console.error(error);
  process.exit(1);
});
