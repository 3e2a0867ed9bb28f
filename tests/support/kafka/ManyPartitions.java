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
 * One consumer of many partitions, in one fetch session, with small limits: records come in rounds, in other
 * partitions each time; partitions are given up and taken again.
 *
 * <p>Arguments: bootstrap, topic, partitions, rounds. Prints how many records were read, and every gap.
 */
public final class ManyPartitions {
  private static final Map<TopicPartition, Long> NEXT = new HashMap<>();
  private static long read = 0;

  public static void main(String[] args) throws Exception {
    NEXT.clear();
    read = 0;
    String topic = args[1];
    int count = Integer.parseInt(args[2]);
    int rounds = Integer.parseInt(args[3]);
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", args[0]);
    settings.put("auto.offset.reset", "none");
    settings.put("fetch.max.bytes", 2048);
    settings.put("max.partition.fetch.bytes", 512);
    settings.put("fetch.max.wait.ms", 50);
    List<TopicPartition> all = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      all.add(new TopicPartition(topic, i));
    }
    try (Admin admin = Admin.create(Collections.singletonMap("bootstrap.servers", args[0]));
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(
                Collections.singletonMap("bootstrap.servers", (Object) args[0]),
                new ByteArraySerializer(),
                new ByteArraySerializer());
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      admin.createTopics(Collections.singleton(new NewTopic(topic, count, (short) 1))).all().get();
      consumer.assign(all);
      consumer.seekToBeginning(all);
      long sent = 0;
      for (int round = 0; round < rounds; round++) {
        for (int i = round % 3; i < count; i += 3) {
          producer.send(new ProducerRecord<>(topic, i, null, new byte[100]));
          sent++;
        }
        producer.flush();
        if (round % 4 == 1) {
          // Half of the partitions are forgotten; what comes to them is read when they are taken again.
          List<TopicPartition> half = all.subList(0, count / 2);
          consumer.assign(half);
          poll(consumer);
          consumer.assign(all);
          for (TopicPartition each : all) {
            consumer.seek(each, NEXT.getOrDefault(each, 0L));
          }
        }
        long until = System.nanoTime() + 60_000_000_000L;
        while (read < sent && System.nanoTime() < until) {
          poll(consumer);
        }
      }
      poll(consumer);
      System.out.println("read " + read + " of " + sent);
    }
  }

  private static void poll(KafkaConsumer<byte[], byte[]> consumer) {
    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
      TopicPartition from = new TopicPartition(record.topic(), record.partition());
      long next = NEXT.getOrDefault(from, 0L);
      if (record.offset() != next) {
        System.out.println(from + ": " + record.offset() + " after " + next);
      }
      NEXT.put(from, record.offset() + 1);
      read++;
    }
  }
}
