import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams' word count, exactly once: lines of the first topic in, every new count of a word to the second.
 *
 * <p>Counts live in memory, so a process that was killed comes back with what the changelog says, and only with that.
 *
 * <p>With `streams` as sixth argument it joins a streams group (KIP-1071), whose broker decides about sessions.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String input = arguments[1];
        String output = arguments[2];
        Properties config = new Properties();
        config.put("application.id", arguments[3]);
        config.put("state.dir", arguments[4]);
        config.put("bootstrap.servers", bootstrap);
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("num.stream.threads", "2");
        config.put("commit.interval.ms", "100");
        config.put("statestore.cache.max.bytes", "0"); // every count is sent, none is overwritten by the next
        config.put("main.consumer.auto.offset.reset", "earliest");
        if (arguments.length > 5) {
            config.put("group.protocol", arguments[5]);
        } else {
            config.put("main.consumer.session.timeout.ms", "6000");
            config.put("main.consumer.heartbeat.interval.ms", "1000");
        }
        config.put("main.consumer.max.poll.records", "20"); // slow enough to be killed in the middle
        config.put("producer.transaction.timeout.ms", "4000"); // what a killed process left open is in the way until then

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(String::valueOf)
                .to(output, Produced.with(Serdes.String(), Serdes.String()));

        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        ended.await();
        Runtime.getRuntime().halt(1);
    }
}
