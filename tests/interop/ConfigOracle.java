import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import kafka.server.ConfigAdminManager;
import kafka.server.ConfigHelper;
import kafka.server.KafkaConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.message.DescribeConfigsRequestData.DescribeConfigsResource;
import org.apache.kafka.common.message.DescribeConfigsResponseData.DescribeConfigsResourceResult;
import org.apache.kafka.common.message.DescribeConfigsResponseData.DescribeConfigsResult;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.metadata.MetadataCache;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.QuotaConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;
import scala.jdk.javaapi.CollectionConverters;

/** Asks Kafka's own configuration code: one JSON question per line of input, one JSON answer per line of output. */
public final class ConfigOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int NODE_ID = 1;

    private ConfigOracle() { }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", answer(JSON.readTree(line)));
            } catch (Exception | LinkageError failure) {
                answer.put("error", String.valueOf(failure.getMessage()));
                answer.put("kind", failure.getClass().getSimpleName());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private static Object answer(JsonNode question) throws Exception {
        switch (question.get("do").asText()) {
            case "definitions":
                return definitions();
            case "properties":
                Properties properties = new Properties();
                properties.load(new StringReader(question.get("text").asText()));
                return new TreeMap<>(properties);
            case "parse":
                return parse(question.get("family").asText(), question.get("name").asText(), question.get("value").asText());
            case "load":
                kafkaConfig(question);
                return true;
            case "validate":
                return validate(question);
            case "dynamic":
                kafkaConfig(question).dynamicConfig().validate(
                    properties(question.get("change")), question.get("per_broker").asBoolean());
                return true;
            case "describe":
                return describe(question);
            case "operations":
                return operations(question);
            default:
                throw new IllegalArgumentException("unknown question " + question);
        }
    }

    private static ConfigDef family(String name) {
        switch (name) {
            case "broker":
                return AbstractKafkaConfig.CONFIG_DEF;
            case "quota":
                return QuotaConfig.brokerQuotaConfigs();
            case "topic":
                return LogConfig.configDefCopy();
            case "group":
                return GroupConfig.CONFIG_DEF;
            default:
                return ClientMetricsConfigs.configDef();
        }
    }

    private static Object definitions() throws Exception {
        Map<String, Object> all = new LinkedHashMap<>();
        for (String name : List.of("broker", "quota", "topic", "group", "client_metrics")) {
            Map<String, Object> keys = new TreeMap<>();
            for (ConfigDef.ConfigKey key : family(name).configKeys().values()) {
                keys.put(key.name, definition(key));
            }
            all.put(name, keys);
        }
        all.put("modes", new TreeMap<>(DynamicBrokerConfig.dynamicConfigUpdateModes()));
        all.put("topic_synonyms", new TreeMap<>(ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS));
        Map<String, Object> groupSynonyms = new TreeMap<>();
        GroupConfig.ALL_GROUP_CONFIG_SYNONYMS.forEach((name, synonym) -> groupSynonyms.put(name, synonym.orElse(null)));
        all.put("group_synonyms", groupSynonyms);
        Map<String, Object> brokerSynonyms = new TreeMap<>();
        for (String name : AbstractKafkaConfig.CONFIG_DEF.names()) {
            brokerSynonyms.put(name, DynamicBrokerConfig.brokerConfigSynonyms(name, true));
        }
        all.put("broker_synonyms", brokerSynonyms);
        all.put("security", new ArrayList<>(DynamicBrokerConfig.DYNAMIC_SECURITY_CONFIGS));
        return all;
    }

    private static Object definition(ConfigDef.ConfigKey key) throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("type", key.type.name());
        facts.put("required", !key.hasDefault());
        facts.put("default", key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null);
        facts.put("valid", key.validator == null ? null : key.validator.toString());
        facts.put("importance", key.importance.name());
        facts.put("internal", key.internalConfig);
        if (key.validator instanceof ConfigDef.ValidList) {
            Field field = ConfigDef.ValidList.class.getDeclaredField("isEmptyAllowed");
            field.setAccessible(true);
            facts.put("empty_allowed", field.getBoolean(key.validator));
        }
        return facts;
    }

    private static Object parse(String family, String name, String value) {
        ConfigDef.ConfigKey key = family(family).configKeys().get(name);
        Object parsed = new ConfigDef().define(key).parse(Map.of(name, value)).get(name);
        return ConfigDef.convertToString(parsed, key.type);
    }

    private static Properties properties(JsonNode node) {
        Properties properties = new Properties();
        if (node != null) {
            node.properties().forEach(field -> properties.put(field.getKey(), field.getValue().asText()));
        }
        return properties;
    }

    private static KafkaConfig kafkaConfig(JsonNode question) {
        KafkaConfig config = KafkaConfig.fromProps(properties(question.get("settings")), false);
        config.dynamicConfig().initialize(scala.Option.empty());
        config.dynamicConfig().updateDefaultConfig(properties(question.get("dynamic_default")), false);
        config.dynamicConfig().updateBrokerConfig(NODE_ID, properties(question.get("dynamic_broker")), false);
        return config;
    }

    private static Map<String, String> strings(JsonNode node) {
        Map<String, String> map = new LinkedHashMap<>();
        node.properties().forEach(field -> map.put(field.getKey(), field.getValue().asText()));
        return map;
    }

    private static Object validate(JsonNode question) {
        KafkaConfig config = kafkaConfig(question);
        Map<String, String> configs = strings(question.get("configs"));
        switch (question.get("family").asText()) {
            case "topic":
                LogConfig.validate(Map.of(), configs, config.extractLogConfigMap(), false);
                return true;
            case "group":
                GroupConfig.validate(configs, config.groupCoordinatorConfig(), config.shareGroupConfig());
                return true;
            default:
                ClientMetricsConfigs.validate("subscription", configs);
                return true;
        }
    }

    private static Object describe(JsonNode question) {
        KafkaConfig config = kafkaConfig(question);
        Properties own = properties(question.get("configs"));
        MetadataCache cache = (MetadataCache) Proxy.newProxyInstance(
            ConfigOracle.class.getClassLoader(), new Class<?>[] {MetadataCache.class}, (proxy, method, values) -> true);
        DescribeConfigsResource resource = new DescribeConfigsResource()
            .setResourceType((byte) question.get("resource").asInt())
            .setResourceName(question.get("name").asText())
            .setConfigurationKeys(null);
        List<DescribeConfigsResource> asked = List.of(resource);
        DescribeConfigsResult result = new ConfigHelper(cache, config, ignored -> own)
            .describeConfigs(CollectionConverters.asScala(asked).toList(), true, true).head();
        if (result.errorCode() != 0) {
            throw new IllegalStateException(result.errorMessage());
        }
        List<Object> entries = new ArrayList<>();
        for (DescribeConfigsResourceResult entry : result.configs()) {
            Map<String, Object> shown = new LinkedHashMap<>();
            shown.put("name", entry.name());
            shown.put("value", entry.value());
            shown.put("source", entry.configSource());
            shown.put("read_only", entry.readOnly());
            shown.put("is_sensitive", entry.isSensitive());
            shown.put("type", entry.configType());
            List<Object> synonyms = new ArrayList<>();
            entry.synonyms().forEach(synonym -> synonyms.add(List.of(
                synonym.name(), String.valueOf(synonym.value()), synonym.source())));
            shown.put("synonyms", synonyms);
            entries.add(shown);
        }
        return entries;
    }

    private static Object operations(JsonNode question) {
        Properties current = properties(question.get("current"));
        List<AlterConfigOp> operations = new ArrayList<>();
        for (JsonNode change : question.get("changes")) {
            operations.add(new AlterConfigOp(
                new ConfigEntry(change.get(0).asText(), change.get(2).isNull() ? null : change.get(2).asText()),
                AlterConfigOp.OpType.forId((byte) change.get(1).asInt())));
        }
        Map<String, ConfigDef.ConfigKey> keys = family(question.get("family").asText()).configKeys();
        ConfigAdminManager.prepareIncrementalConfigs(
            CollectionConverters.asScala(operations).toSeq(), current, CollectionConverters.asScala(keys));
        return new TreeMap<>(current);
    }
}
