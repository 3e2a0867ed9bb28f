import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What a program does with Kafka's Java client, of any version since 2.8: makes a topic, produces with every
 * codec, idempotent and not, reads with assigned partitions, asks for offsets, deletes the topic.
 *
 * <p>Arguments: bootstrap, topic, number of records for each producer. Prints a line for each fact.
 */
public final class Clients {
  private static final long START_MS = 1_600_000_000_000L;

  public static void main(String[] args) throws Exception {
    String topic = args[1];
    int count = Integer.parseInt(args[2]);
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", args[0]);
    try (Admin admin = Admin.create(new HashMap<>(settings))) {
      admin.createTopics(Collections.singleton(new NewTopic(topic, 2, (short) 1))).all().get();
      long sent = 0;
      for (String codec : new String[] {"none", "gzip", "snappy", "lz4", "zstd"}) {
        for (boolean idempotent : new boolean[] {true, false}) {
          sent = produce(new HashMap<>(settings), topic, codec, idempotent, count, sent);
        }
      }
      read(new HashMap<>(settings), topic, sent);
      admin.deleteTopics(Collections.singleton(topic)).all().get();
      System.out.println("deleted " + !admin.listTopics().names().get().contains(topic));
    }
  }

  private static long produce(
      Map<String, Object> settings, String topic, String codec, boolean idempotent, int count, long sent)
      throws Exception {
    settings.put("compression.type", codec);
    settings.put("enable.idempotence", idempotent);
    settings.put("acks", idempotent ? "all" : "1");
    settings.put("linger.ms", 1);
    List<java.util.concurrent.Future<?>> answers = new ArrayList<>();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (int i = 0; i < count; i++, sent++) {
        byte[] key = ("k" + sent).getBytes(StandardCharsets.UTF_8);
        byte[] value = sent % 7 == 0 ? null : (codec + " " + sent).getBytes(StandardCharsets.UTF_8);
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(topic, (int) (sent % 2), START_MS + sent, key, value);
        record.headers().add("h", key);
        answers.add(producer.send(record));
      }
    }
    for (java.util.concurrent.Future<?> answer : answers) {
      answer.get();
    }
    return sent;
  }

  private static void read(Map<String, Object> settings, String topic, long sent) {
    List<TopicPartition> both = new ArrayList<>();
    both.add(new TopicPartition(topic, 0));
    both.add(new TopicPartition(topic, 1));
    for (String isolation : new String[] {"read_uncommitted", "read_committed"}) {
      settings.put("isolation.level", isolation);
      try (KafkaConsumer<byte[], byte[]> consumer =
          new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
        consumer.assign(both);
        consumer.seekToBeginning(both);
        List<String> lines = new ArrayList<>();
        while (lines.size() < sent) {
          for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(20))) {
            lines.add(line(record));
          }
        }
        Collections.sort(lines);
        lines.forEach(line -> System.out.println(isolation + " " + line));
        System.out.println("starts " + new java.util.TreeMap<>(byNumber(consumer.beginningOffsets(both))));
        System.out.println("ends " + new java.util.TreeMap<>(byNumber(consumer.endOffsets(both))));
        Map<TopicPartition, Long> times = new HashMap<>();
        times.put(both.get(0), START_MS + 5);
        System.out.println("at time " + consumer.offsetsForTimes(times).get(both.get(0)).offset());
      }
    }
  }

  private static Map<Integer, Long> byNumber(Map<TopicPartition, Long> offsets) {
    Map<Integer, Long> found = new HashMap<>();
    offsets.forEach((partition, offset) -> found.put(partition.partition(), offset));
    return found;
  }

  private static String line(ConsumerRecord<byte[], byte[]> record) {
    String value = record.value() == null ? "null" : new String(record.value(), StandardCharsets.UTF_8);
    String header = new String(record.headers().lastHeader("h").value(), StandardCharsets.UTF_8);
    return String.format(
        "%d %04d %d %s %s %s",
        record.partition(), record.offset(), record.timestamp(), new String(record.key()), value, header);
  }
}
