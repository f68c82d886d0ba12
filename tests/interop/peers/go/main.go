// franz-go behind the small command line that every foreign peer here has (see clients.py): produce, consume and admin
// against any bootstrap, records as JSON lines on standard input and output.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type record struct {
	Partition *int32       `json:"partition,omitempty"`
	Offset    *int64       `json:"offset,omitempty"`
	Timestamp *int64       `json:"timestamp,omitempty"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
}

type acknowledged struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
	Timestamp int64 `json:"timestamp"`
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: peer produce|consume|admin BOOTSTRAP TOPIC [--option value]...")
		os.Exit(64)
	}
	options := map[string]string{}
	for i := 4; i+1 < len(os.Args); i += 2 {
		options[strings.TrimPrefix(os.Args[i], "--")] = os.Args[i+1]
	}
	timeoutMs, err := strconv.Atoi(option(options, "timeout-ms", "30000"))
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(timeoutMs)*time.Millisecond)
	defer cancel()
	bootstrap, topic := strings.Split(os.Args[2], ","), os.Args[3]
	switch os.Args[1] {
	case "produce":
		err = produce(ctx, bootstrap, topic, options)
	case "consume":
		err = consume(ctx, bootstrap, topic, options)
	case "admin":
		err = admin(ctx, bootstrap, topic)
	default:
		err = fmt.Errorf("no such command: %s", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func option(options map[string]string, name, otherwise string) string {
	if value, ok := options[name]; ok {
		return value
	}
	return otherwise
}

func print(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}

func produce(ctx context.Context, bootstrap []string, topic string, options map[string]string) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, known := codecs[option(options, "codec", "none")]
	if !known {
		return fmt.Errorf("no such codec: %s", options["codec"])
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(bootstrap...), kgo.ProducerBatchCompression(codec), kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(partitioner)),
	}
	settings = append(settings, security(options)...)
	transactional, isTransactional := options["transactional-id"]
	if isTransactional {
		settings = append(settings, kgo.TransactionalID(transactional))
	} else if option(options, "idempotent", "false") != "true" {
		settings = append(settings, kgo.DisableIdempotentWrite())
	}
	switch option(options, "acks", "all") {
	case "1":
		settings = append(settings, kgo.RequiredAcks(kgo.LeaderAck()))
	case "0":
		settings = append(settings, kgo.RequiredAcks(kgo.NoAck()))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return err
	}
	defer client.Close()
	if isTransactional {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
	}
	records, err := recordsOf(topic)
	if err != nil {
		return err
	}
	results := client.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return err
	}
	if isTransactional {
		end := kgo.TransactionEndTry(option(options, "end", "commit") == "commit")
		if err := client.EndTransaction(ctx, end); err != nil {
			return err
		}
	}
	for _, made := range records {
		if err := print(acknowledged{made.Partition, made.Offset, made.Timestamp.UnixMilli()}); err != nil {
			return err
		}
	}
	return nil
}

// partitioner honours an explicit partition; anything else goes by Kafka's own key hash.
func partitioner(topic string) func(*kgo.Record, int) int {
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	return func(made *kgo.Record, count int) int {
		if made.Partition >= 0 {
			return int(made.Partition)
		}
		return byKey.Partition(made, count)
	}
}

func recordsOf(topic string) ([]*kgo.Record, error) {
	var records []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var given record
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			return nil, err
		}
		made := &kgo.Record{Topic: topic, Key: bytes(given.Key), Value: bytes(given.Value), Partition: -1}
		if given.Partition != nil {
			made.Partition = *given.Partition
		}
		if given.Timestamp != nil {
			made.Timestamp = time.UnixMilli(*given.Timestamp)
		}
		for _, header := range given.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: *header[0], Value: bytes(header[1])})
		}
		records = append(records, made)
	}
	return records, lines.Err()
}

// security is what --ca FILE (TLS) and --sasl MECHANISM --user NAME --password SECRET (or a token) ask for.
func security(options map[string]string) []kgo.Opt {
	var settings []kgo.Opt
	if path, named := options["ca"]; named {
		pem, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		settings = append(settings, kgo.DialTLSConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}))
	}
	user, password := options["user"], options["password"]
	switch options["sasl"] {
	case "PLAIN":
		settings = append(settings, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		settings = append(settings, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "OAUTHBEARER":
		settings = append(settings, kgo.SASL(oauth.Auth{Token: password}.AsMechanism()))
	case "SCRAM-SHA-512":
		settings = append(settings, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	return settings
}

func consume(ctx context.Context, bootstrap []string, topic string, options map[string]string) error {
	wanted, err := strconv.Atoi(option(options, "max", ""))
	if err != nil {
		return errors.New("--max is needed: this peer reads a given number of records")
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(bootstrap...), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200 * time.Millisecond),
	}
	settings = append(settings, security(options)...)
	group, grouped := options["group"]
	if grouped {
		settings = append(settings, kgo.ConsumerGroup(group))
	}
	if option(options, "isolation", "read_uncommitted") == "read_committed" {
		settings = append(settings, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return err
	}
	defer client.Close()
	seen := 0
	for seen < wanted {
		fetches := client.PollRecords(ctx, wanted-seen)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("timeout: %d records so far", seen)
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, item := range fetches.Records() {
			seen++
			if err := print(jsonOf(item)); err != nil {
				return err
			}
		}
	}
	if grouped {
		return client.CommitUncommittedOffsets(ctx)
	}
	return nil
}

func jsonOf(item *kgo.Record) record {
	timestamp := item.Timestamp.UnixMilli()
	out := record{&item.Partition, &item.Offset, &timestamp, text(item.Key), text(item.Value), [][2]*string{}}
	for _, header := range item.Headers {
		key := header.Key
		out.Headers = append(out.Headers, [2]*string{&key, text(header.Value)})
	}
	return out
}

func bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func text(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}

// admin walks through the admin API on a topic that does not exist yet, one JSON line per step, nothing in it that differs
// between two healthy single-node clusters.
func admin(ctx context.Context, bootstrap []string, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...))
	if err != nil {
		return err
	}
	defer client.Close()
	tour := &tour{ctx, client, kadm.NewClient(client), topic}
	steps := []struct {
		name string
		run  func() (map[string]any, error)
	}{
		{"create_topic", tour.create}, {"create_topic_again", tour.createAgain}, {"describe_topic", tour.describe},
		{"configs", tour.configs}, {"create_partitions", tour.partitions}, {"offsets", tour.offsets},
		{"delete_records", tour.deleteRecords}, {"group_offsets", tour.groupOffsets}, {"cluster", tour.cluster},
		{"log_dirs", tour.logDirs}, {"delete_topic", tour.delete},
	}
	for _, step := range steps {
		line, err := step.run()
		if line == nil {
			line = map[string]any{}
		}
		line["step"] = step.name
		if err != nil {
			line["error"] = err.Error()
		}
		if err := print(line); err != nil {
			return err
		}
	}
	return nil
}

type tour struct {
	ctx    context.Context
	client *kgo.Client
	admin  *kadm.Client
	topic  string
}

func (t *tour) create() (map[string]any, error) {
	retention := "86400000"
	made, err := t.admin.CreateTopic(t.ctx, 2, -1, map[string]*string{"retention.ms": &retention}, t.topic)
	return map[string]any{"partitions": made.NumPartitions, "replication_factor": made.ReplicationFactor}, err
}

func (t *tour) createAgain() (map[string]any, error) {
	_, err := t.admin.CreateTopic(t.ctx, 2, -1, nil, t.topic)
	return failure(err, kerr.TopicAlreadyExists)
}

func failure(err error, expected *kerr.Error) (map[string]any, error) {
	if !errors.Is(err, expected) {
		return nil, fmt.Errorf("expected %s, got %v", expected.Message, err)
	}
	return map[string]any{"failure": expected.Message}, nil
}

func (t *tour) describe() (map[string]any, error) {
	details, err := t.admin.ListTopics(t.ctx, t.topic)
	if err != nil {
		return nil, err
	}
	detail := details[t.topic]
	return map[string]any{"partitions": len(detail.Partitions), "internal": detail.IsInternal, "has_id": detail.ID != kadm.TopicID{}}, detail.Err
}

func (t *tour) configs() (map[string]any, error) {
	size := "2000000"
	changed, err := t.admin.AlterTopicConfigs(t.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &size}}, t.topic)
	if err != nil {
		return nil, err
	}
	if _, err := changed.On(t.topic, nil); err != nil {
		return nil, err
	}
	// A broker answers from its own view of the cluster, which may be a moment behind what the controller has committed.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		line, err := t.describedConfigs()
		if err != nil || strings.HasPrefix(line["max.message.bytes"].(string), size) || time.Now().After(deadline) {
			return line, err
		}
	}
}

func (t *tour) describedConfigs() (map[string]any, error) {
	described, err := t.admin.DescribeTopicConfigs(t.ctx, t.topic)
	if err != nil {
		return nil, err
	}
	resource, err := described.On(t.topic, nil)
	if err != nil {
		return nil, err
	}
	line := map[string]any{"max.message.bytes": ""}
	for _, config := range resource.Configs {
		if config.Key == "max.message.bytes" || config.Key == "retention.ms" || config.Key == "segment.bytes" {
			line[config.Key] = fmt.Sprintf("%s %s", config.MaybeValue(), config.Source)
		}
	}
	return line, resource.Err
}

func (t *tour) partitions() (map[string]any, error) {
	added, err := t.admin.UpdatePartitions(t.ctx, 3, t.topic)
	if err != nil {
		return nil, err
	}
	return map[string]any{}, added.Error()
}

func (t *tour) offsets() (map[string]any, error) {
	// Recent, so that retention leaves the records alone; printed relative to this, so that runs can be compared.
	first := time.Now().UnixMilli()
	for i := range 10 {
		made := &kgo.Record{Topic: t.topic, Partition: 0, Key: []byte("k"), Value: []byte("v"), Timestamp: time.UnixMilli(first + int64(i))}
		if err := t.producer(made); err != nil {
			return nil, err
		}
	}
	line := map[string]any{}
	for name, list := range map[string]func() (kadm.ListedOffsets, error){
		"earliest":  func() (kadm.ListedOffsets, error) { return t.admin.ListStartOffsets(t.ctx, t.topic) },
		"latest":    func() (kadm.ListedOffsets, error) { return t.admin.ListEndOffsets(t.ctx, t.topic) },
		"committed": func() (kadm.ListedOffsets, error) { return t.admin.ListCommittedOffsets(t.ctx, t.topic) },
		"for_timestamp": func() (kadm.ListedOffsets, error) {
			return t.admin.ListOffsetsAfterMilli(t.ctx, first+4, t.topic)
		},
	} {
		listed, err := list()
		if err != nil {
			return line, err
		}
		found, ok := listed.Lookup(t.topic, 0)
		if !ok || found.Err != nil {
			return line, fmt.Errorf("%s: %v", name, found.Err)
		}
		at := found.Timestamp
		if at >= 0 {
			at -= first
		}
		line[name] = fmt.Sprintf("%d at %d epoch %d", found.Offset, at, found.LeaderEpoch)
	}
	return line, nil
}

// producer sends one record to the partition it names; the admin's own client has no such partitioner.
func (t *tour) producer(made *kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.client.OptValue(kgo.SeedBrokers).([]string)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(t.ctx, made).FirstErr()
}

func (t *tour) deleteRecords() (map[string]any, error) {
	upTo := kadm.Offsets{}
	upTo.AddOffset(t.topic, 0, 4, -1)
	deleted, err := t.admin.DeleteRecords(t.ctx, upTo)
	if err != nil {
		return nil, err
	}
	found, _ := deleted.Lookup(t.topic, 0)
	return map[string]any{"low_watermark": found.LowWatermark}, found.Err
}

func (t *tour) groupOffsets() (map[string]any, error) {
	group := t.topic + "-admin"
	commit := kadm.Offsets{}
	commit.Add(kadm.Offset{Topic: t.topic, Partition: 0, At: 5, LeaderEpoch: 0, Metadata: "noted"})
	if err := t.admin.CommitAllOffsets(t.ctx, group, commit); err != nil {
		return nil, err
	}
	fetched, err := t.admin.FetchOffsets(t.ctx, group)
	if err != nil {
		return nil, err
	}
	found, _ := fetched.Lookup(t.topic, 0)
	described, err := t.admin.DescribeGroups(t.ctx, group)
	if err != nil {
		return nil, err
	}
	_, err = t.admin.DeleteGroup(t.ctx, group)
	return map[string]any{"offset": found.At, "metadata": found.Metadata, "epoch": found.LeaderEpoch, "state": described[group].State}, err
}

func (t *tour) cluster() (map[string]any, error) {
	metadata, err := t.admin.BrokerMetadata(t.ctx)
	return map[string]any{"brokers": len(metadata.Brokers), "has_cluster_id": metadata.Cluster != ""}, err
}

func (t *tour) logDirs() (map[string]any, error) {
	dirs, err := t.admin.DescribeAllLogDirs(t.ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs.Sorted() {
		if dir.Err != nil {
			return nil, dir.Err
		}
	}
	return map[string]any{"brokers": len(dirs)}, nil
}

func (t *tour) delete() (map[string]any, error) {
	if _, err := t.admin.DeleteTopic(t.ctx, t.topic); err != nil {
		return nil, err
	}
	_, err := t.admin.DeleteTopic(t.ctx, t.topic)
	return failure(err, kerr.UnknownTopicOrPartition)
}
