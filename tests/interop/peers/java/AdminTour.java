import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeProducersResult.PartitionProducerState;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One walk through the Java Admin client on one topic that does not exist yet. Every step prints one JSON line that holds
 * nothing that differs between two healthy single-node clusters, so two brokers can be compared line by line.
 */
final class AdminTour {
    // Recent, so that retention leaves the records alone; printed relative to this, so that runs can be compared.
    private static final long FIRST_TIMESTAMP_MS = System.currentTimeMillis();

    private static final int TRIES = 400;
    private static final long PAUSE_MS = 50;

    private interface Step {
        void run(ObjectNode out) throws ExecutionException, InterruptedException;
    }

    private final Admin admin;
    private final String bootstrap;
    private final String topic;
    private final TopicPartition first;
    private final ConfigResource resource;

    private AdminTour(Admin admin, String bootstrap, String topic) {
        this.admin = admin;
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.first = new TopicPartition(topic, 0);
        this.resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    static void run(String bootstrap, String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("default.api.timeout.ms", "20000");
        config.put("request.timeout.ms", "10000");
        try (Admin admin = Admin.create(config)) {
            new AdminTour(admin, bootstrap, topic).walk();
        }
    }

    private void walk() {
        step("create_topic_validate_only", this::validateOnly);
        step("create_topic", this::createTopic);
        step("create_topic_again", out -> expectFailure(out, () -> admin.createTopics(Set.of(newTopic())).all().get()));
        step("list_topics", out -> out.put("listed", admin.listTopics().names().get().contains(topic)));
        step("describe_topic", this::describeTopic);
        step("describe_configs", this::describeConfigs);
        step("alter_configs", this::alterConfigs);
        step("create_partitions", this::createPartitions);
        step("produce", this::produce);
        step("list_offsets", this::listOffsets);
        step("delete_records", this::deleteRecords);
        step("describe_producers", this::describeProducers);
        step("describe_log_dirs", this::describeLogDirs);
        step("describe_cluster", this::describeCluster);
        step("describe_features", this::describeFeatures);
        step("describe_quorum", this::describeQuorum);
        step("group_offsets", this::groupOffsets);
        step("delete_topic", this::deleteTopic);
    }

    private void step(String name, Step step) {
        ObjectNode out = MoldauPeer.JSON.createObjectNode();
        out.put("step", name);
        try {
            step.run(out);
        } catch (ExecutionException failure) {
            out.put("error", String.valueOf(failure.getCause()));
        } catch (Exception failure) {
            out.put("error", String.valueOf(failure));
        }
        System.out.println(out);
    }

    private interface Call {
        void run() throws ExecutionException, InterruptedException;
    }

    private static void expectFailure(ObjectNode out, Call call) throws InterruptedException {
        try {
            call.run();
            out.put("error", "no failure");
        } catch (ExecutionException failure) {
            out.put("failure", failure.getCause().getClass().getSimpleName());
        }
    }

    private NewTopic newTopic() {
        return new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "86400000"));
    }

    private void validateOnly(ObjectNode out) throws ExecutionException, InterruptedException {
        var options = new org.apache.kafka.clients.admin.CreateTopicsOptions().validateOnly(true);
        admin.createTopics(Set.of(newTopic()), options).all().get();
        out.put("listed", admin.listTopics().names().get().contains(topic));
    }

    private void createTopic(ObjectNode out) throws ExecutionException, InterruptedException {
        CreateTopicsResult result = admin.createTopics(Set.of(newTopic()));
        out.put("partitions", result.numPartitions(topic).get());
        out.put("replication_factor", result.replicationFactor(topic).get());
        out.put("has_id", !result.topicId(topic).get().equals(org.apache.kafka.common.Uuid.ZERO_UUID));
        out.put("retention.ms", result.config(topic).get().get("retention.ms").value());
    }

    private void describeTopic(ObjectNode out) throws ExecutionException, InterruptedException {
        TopicDescription description = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic);
        out.put("internal", description.isInternal()).put("partitions", description.partitions().size());
        out.put("leader_leads", description.partitions().stream().allMatch(p -> p.isr().contains(p.leader()) && p.replicas().equals(p.isr())));
        boolean sameById = admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(Set.of(description.topicId())))
                .allTopicIds().get().get(description.topicId()).name().equals(topic);
        out.put("found_by_id", sameById);
    }

    private Config config() throws ExecutionException, InterruptedException {
        return admin.describeConfigs(Set.of(resource)).all().get().get(resource);
    }

    private void describeConfigs(ObjectNode out) throws ExecutionException, InterruptedException {
        ObjectNode entries = out.putObject("entries");
        Map<String, ConfigEntry> sorted = new TreeMap<>();
        config().entries().forEach(entry -> sorted.put(entry.name(), entry));
        // segment.bytes and its kind may be set for a whole test broker; the source says so, the value is compared too.
        sorted.forEach((name, entry) -> entries.put(name, entry.value() + " " + entry.source() + " " + entry.type()));
    }

    private void alterConfigs(ObjectNode out) throws ExecutionException, InterruptedException {
        Collection<AlterConfigOp> set = List.of(
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
                new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE));
        admin.incrementalAlterConfigs(Map.of(resource, set)).all().get();
        Config changed = config();
        // A broker answers from its own view of the cluster, which may be a moment behind what the controller has.
        for (int tries = 0; !"2000000".equals(changed.get("max.message.bytes").value()) && tries < TRIES; tries++) {
            Thread.sleep(PAUSE_MS);
            changed = config();
        }
        for (String name : List.of("max.message.bytes", "cleanup.policy", "retention.ms")) {
            out.put(name, changed.get(name).value() + " " + changed.get(name).source());
        }
        Collection<AlterConfigOp> wrong = List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET));
        expectFailure(out, () -> admin.incrementalAlterConfigs(Map.of(resource, wrong)).all().get());
        Collection<AlterConfigOp> back = List.of(new AlterConfigOp(new ConfigEntry("cleanup.policy", ""), AlterConfigOp.OpType.DELETE));
        admin.incrementalAlterConfigs(Map.of(resource, back)).all().get();
    }

    private int partitionCount() throws ExecutionException, InterruptedException {
        return admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    private void createPartitions(ObjectNode out) throws ExecutionException, InterruptedException {
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        int found = partitionCount();
        for (int tries = 0; found < 3 && tries < TRIES; tries++) {
            Thread.sleep(PAUSE_MS);
            found = partitionCount();
        }
        out.put("partitions", found);
        expectFailure(out, () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(1))).all().get());
    }

    private void produce(ObjectNode out) throws ExecutionException, InterruptedException {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.idempotence", "true");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 10; i++) {
                long offset = producer.send(new ProducerRecord<>(topic, 0, FIRST_TIMESTAMP_MS + i, "k" + i, "v" + i)).get().offset();
                out.put("last_offset", offset);
            }
        }
    }

    private void listOffsets(ObjectNode out) throws ExecutionException, InterruptedException {
        putOffset(out, "earliest", OffsetSpec.earliest());
        putOffset(out, "latest", OffsetSpec.latest());
        putOffset(out, "max_timestamp", OffsetSpec.maxTimestamp());
        putOffset(out, "for_timestamp", OffsetSpec.forTimestamp(FIRST_TIMESTAMP_MS + 4));
        putOffset(out, "too_late", OffsetSpec.forTimestamp(FIRST_TIMESTAMP_MS + 4_000));
        putOffset(out, "earliest_local", OffsetSpec.earliestLocal());
    }

    private void putOffset(ObjectNode out, String name, OffsetSpec spec) throws ExecutionException, InterruptedException {
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(first, spec)).partitionResult(first).get();
        String time = found.timestamp() < 0 ? "none" : String.valueOf(found.timestamp() - FIRST_TIMESTAMP_MS);
        out.put(name, found.offset() + " at " + time + " epoch " + found.leaderEpoch().orElse(-1));
    }

    private void deleteRecords(ObjectNode out) throws ExecutionException, InterruptedException {
        out.put("low_watermark", admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(first).get().lowWatermark());
        putOffset(out, "earliest", OffsetSpec.earliest());
        expectFailure(out, () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(999))).all().get());
    }

    private void describeProducers(ObjectNode out) throws ExecutionException, InterruptedException {
        PartitionProducerState state = admin.describeProducers(Set.of(first)).partitionResult(first).get();
        out.put("producers", state.activeProducers().size());
        state.activeProducers().forEach(p -> out.put("last_sequence", p.lastSequence()).put("producer_epoch", p.producerEpoch()));
    }

    private void describeLogDirs(ObjectNode out) throws ExecutionException, InterruptedException {
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        Map<String, LogDirDescription> dirs = admin.describeLogDirs(Set.of(node)).allDescriptions().get().get(node);
        out.put("dirs", dirs.size());
        for (LogDirDescription dir : dirs.values()) {
            out.put("online", dir.error() == null).put("has_size", dir.totalBytes().isPresent());
            out.put("replica_bytes", dir.replicaInfos().get(first).size()).put("future", dir.replicaInfos().get(first).isFuture());
        }
    }

    private void describeCluster(ObjectNode out) throws ExecutionException, InterruptedException {
        DescribeClusterResult cluster = admin.describeCluster();
        out.put("nodes", cluster.nodes().get().size()).put("has_cluster_id", !cluster.clusterId().get().isEmpty());
        out.put("controller_is_a_node", cluster.nodes().get().contains(cluster.controller().get()));
    }

    private void describeFeatures(ObjectNode out) throws ExecutionException, InterruptedException {
        var features = admin.describeFeatures().featureMetadata().get();
        ObjectNode finalized = out.putObject("finalized");
        new TreeMap<>(features.finalizedFeatures()).forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
        out.put("supported", new TreeSet<>(features.supportedFeatures().keySet()).toString());
    }

    private void describeQuorum(ObjectNode out) throws ExecutionException, InterruptedException {
        QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
        out.put("voters", quorum.voters().size()).put("observers", quorum.observers().size());
        out.put("leader_votes", quorum.voters().stream().anyMatch(voter -> voter.replicaId() == quorum.leaderId()));
    }

    private void groupOffsets(ObjectNode out) throws ExecutionException, InterruptedException {
        String group = topic + "-admin";
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5, Optional.of(0), "noted"))).all().get();
        OffsetAndMetadata committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first);
        out.put("offset", committed.offset()).put("metadata", committed.metadata()).put("epoch", committed.leaderEpoch().orElse(-1));
        out.put("listed", admin.listGroups().all().get().stream().anyMatch(listing -> listing.groupId().equals(group)));
        out.put("state", admin.describeConsumerGroups(Set.of(group)).all().get().get(group).groupState().toString());
        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        admin.deleteConsumerGroups(Set.of(group)).all().get();
        expectFailure(out, () -> admin.deleteConsumerGroups(Set.of(group)).all().get());
    }

    private void deleteTopic(ObjectNode out) throws ExecutionException, InterruptedException {
        admin.deleteTopics(Set.of(topic)).all().get();
        expectFailure(out, () -> admin.deleteTopics(Set.of(topic)).all().get());
    }
}
