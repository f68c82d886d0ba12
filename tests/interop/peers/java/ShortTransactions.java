import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Many producers, each with one short transaction after the other, over all partitions of a topic.
 *
 * <p>Arguments: bootstrap servers, topic, partitions, producers, transactions of each, and "offsets" if each transaction
 * shall commit offsets of a group, too. Prints one line for each transaction that failed, the longest time a first
 * transaction took, and how many failed.
 */
public final class ShortTransactions {
    private ShortTransactions() {}

    private record Outcome(List<String> failures, long firstMs) {}

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int partitions = Integer.parseInt(args[2]);
        int producers = Integer.parseInt(args[3]);
        int transactions = Integer.parseInt(args[4]);
        boolean withOffsets = args.length > 5 && args[5].equals("offsets");
        ExecutorService pool = Executors.newFixedThreadPool(producers);
        List<Future<Outcome>> running = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            String name = (withOffsets ? "offsets-" : "plain-") + number;
            Callable<Outcome> work = () -> run(args[0], topic, partitions, name, transactions, withOffsets);
            running.add(pool.submit(work));
        }
        int failed = 0;
        long firstMs = 0;
        for (Future<Outcome> each : running) {
            Outcome outcome = each.get();
            failed += outcome.failures().size();
            firstMs = Math.max(firstMs, outcome.firstMs());
            outcome.failures().forEach(System.out::println);
        }
        pool.shutdown();
        System.out.println("slowest first transaction: " + firstMs + " ms");
        System.out.println("failed: " + failed + " of " + producers * transactions);
    }

    private static Outcome run(
            String servers, String topic, int partitions, String name, int transactions, boolean withOffsets) {
        List<String> failures = new ArrayList<>();
        long firstMs = 0;
        KafkaProducer<String, String> producer = producer(servers, name);
        try {
            for (int number = 0; number < transactions; number++) {
                long began = System.nanoTime();
                try {
                    producer.beginTransaction();
                    for (int partition = 0; partition < partitions; partition++) {
                        producer.send(new ProducerRecord<>(topic, partition, name, Integer.toString(number)));
                    }
                    if (withOffsets) {
                        producer.sendOffsetsToTransaction(
                                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number)),
                                groupOf(name));
                    }
                    producer.commitTransaction();
                } catch (RuntimeException error) {
                    failures.add(name + " " + number + ": " + error);
                    producer.close();
                    producer = producer(servers, name);
                }
                if (number == 0) {
                    firstMs = (System.nanoTime() - began) / 1_000_000;
                }
            }
        } finally {
            producer.close();
        }
        return new Outcome(failures, firstMs);
    }

    @SuppressWarnings("removal") // the only way to name a group without a consumer that joins it
    private static ConsumerGroupMetadata groupOf(String name) {
        return new ConsumerGroupMetadata("group-of-" + name);
    }

    private static KafkaProducer<String, String> producer(String servers, String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", name);
        settings.put("linger.ms", "0");
        KafkaProducer<String, String> made =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }
}
