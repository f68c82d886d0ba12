import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's Java clients behind the small command line that every foreign peer here has (see clients.py):
 * produce, consume and admin against any bootstrap, records as JSON lines on standard input and output.
 */
public final class MoldauPeer {
    static final ObjectMapper JSON = new ObjectMapper();

    private MoldauPeer() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 3) {
            System.err.println("usage: MoldauPeer produce|consume|admin BOOTSTRAP TOPIC [--option value | --set key=value]...");
            System.exit(64);
        }
        Options options = new Options(arguments);
        switch (arguments[0]) {
            case "produce" -> produce(options);
            case "consume" -> consume(options);
            case "admin" -> AdminTour.run(options.bootstrap, options.topic);
            default -> throw new IllegalArgumentException("no such command: " + arguments[0]);
        }
        System.out.flush();
    }

    /** Positional bootstrap and topic, then {@code --name value}; {@code --set key=value} goes to the client's own configuration, as does what {@code --config FILE} holds. */
    static final class Options {
        final String bootstrap;
        final String topic;
        final Map<String, String> named = new HashMap<>();
        final Properties client = new Properties();

        Options(String[] arguments) throws IOException {
            bootstrap = arguments[1];
            topic = arguments[2];
            client.put("bootstrap.servers", bootstrap);
            for (int i = 3; i + 1 < arguments.length; i += 2) {
                if (arguments[i].equals("--set")) {
                    String[] pair = arguments[i + 1].split("=", 2);
                    client.put(pair[0], pair[1]);
                } else if (arguments[i].equals("--config")) {
                    try (Reader file = Files.newBufferedReader(Path.of(arguments[i + 1]))) {
                        client.load(file);
                    }
                    // Java's client reads tokens only from where its process was told it may.
                    String tokens = client.getProperty("sasl.oauthbearer.token.endpoint.url", "");
                    System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", tokens);
                } else {
                    named.put(arguments[i].substring(2), arguments[i + 1]);
                }
            }
        }

        String get(String name, String otherwise) {
            return named.getOrDefault(name, otherwise);
        }

        boolean has(String name) {
            return named.containsKey(name);
        }
    }

    private static void produce(Options options) throws Exception {
        Properties config = new Properties();
        config.put("compression.type", options.get("codec", "none"));
        config.put("acks", options.get("acks", "all"));
        config.put("enable.idempotence", options.get("idempotent", "false"));
        config.put("linger.ms", "5");
        boolean transactional = options.has("transactional-id");
        if (transactional) {
            config.put("transactional.id", options.get("transactional-id", ""));
            config.put("enable.idempotence", "true");
        }
        config.putAll(options.client);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                sent.add(producer.send(recordOf(options.topic, JSON.readTree(line))));
            }
            producer.flush();
            if (transactional && options.get("end", "commit").equals("commit")) {
                producer.commitTransaction();
            } else if (transactional && options.get("end", "commit").equals("abort")) {
                producer.abortTransaction();
            }
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get();
                ObjectNode out = JSON.createObjectNode();
                out.put("partition", metadata.partition()).put("offset", metadata.offset()).put("timestamp", metadata.timestamp());
                System.out.println(out);
            }
            if (transactional && !List.of("commit", "abort").contains(options.get("end", "commit"))) {
                // Any other --end leaves the transaction open, as a crash does: closing the producer would abort it.
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> recordOf(String topic, JsonNode json) {
        Integer partition = json.hasNonNull("partition") ? json.get("partition").asInt() : null;
        Long timestamp = json.hasNonNull("timestamp") ? json.get("timestamp").asLong() : null;
        ProducerRecord<byte[], byte[]> made =
                new ProducerRecord<>(topic, partition, timestamp, bytes(json.get("key")), bytes(json.get("value")));
        if (json.hasNonNull("headers")) {
            for (JsonNode header : json.get("headers")) {
                made.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
        }
        return made;
    }

    private static void consume(Options options) {
        Properties config = new Properties();
        config.put("auto.offset.reset", options.get("from", "earliest"));
        config.put("isolation.level", options.get("isolation", "read_uncommitted"));
        config.put("enable.auto.commit", "false");
        if (options.has("group")) {
            config.put("group.id", options.get("group", ""));
            config.put("group.protocol", options.get("protocol", "classic"));
        }
        config.putAll(options.client);
        long wanted = Long.parseLong(options.get("max", String.valueOf(Long.MAX_VALUE)));
        long deadline = System.currentTimeMillis() + Long.parseLong(options.get("timeout-ms", "30000"));
        try (Consumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            start(consumer, options);
            long seen = 0;
            while (seen < wanted && (options.has("max") || !atEnd(consumer))) {
                for (ConsumerRecord<byte[], byte[]> item : consumer.poll(Duration.ofMillis(100))) {
                    if (seen++ < wanted) {
                        System.out.println(jsonOf(item));
                    }
                }
                if (seen < wanted && System.currentTimeMillis() > deadline) {
                    System.out.flush();
                    System.err.println("timeout: " + seen + " records so far");
                    System.exit(3);
                }
            }
            if (options.has("group")) {
                consumer.commitSync();
            }
        }
    }

    private static void start(Consumer<byte[], byte[]> consumer, Options options) {
        if (options.has("group")) {
            consumer.subscribe(Set.of(options.topic));
            return;
        }
        Collection<TopicPartition> partitions = new ArrayList<>();
        if (options.has("partitions")) {
            for (String number : options.get("partitions", "").split(",")) {
                partitions.add(new TopicPartition(options.topic, Integer.parseInt(number)));
            }
        } else {
            consumer.partitionsFor(options.topic).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
        }
        consumer.assign(partitions);
        if (options.has("offset")) {
            partitions.forEach(p -> consumer.seek(p, Long.parseLong(options.get("offset", "0"))));
        }
    }

    /** Without --max: the end is the high watermark, or the last stable offset for read_committed, of what is assigned now. */
    private static boolean atEnd(Consumer<byte[], byte[]> consumer) {
        Set<TopicPartition> assigned = new HashSet<>(consumer.assignment());
        if (assigned.isEmpty()) {
            return false;
        }
        Map<TopicPartition, Long> ends = consumer.endOffsets(assigned);
        return assigned.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition));
    }

    private static ObjectNode jsonOf(ConsumerRecord<byte[], byte[]> item) {
        ObjectNode out = JSON.createObjectNode();
        out.put("partition", item.partition()).put("offset", item.offset()).put("timestamp", item.timestamp());
        out.put("timestamp_type", item.timestampType().toString());
        out.put("key", text(item.key())).put("value", text(item.value()));
        ArrayNode headers = out.putArray("headers");
        for (Header header : item.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return out;
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : node.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
