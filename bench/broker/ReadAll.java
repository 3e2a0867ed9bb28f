/** Reads the partitions of a topic from their starts to their ends, assigned, and prints records, bytes and seconds. */
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadAll {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("auto.offset.reset", "earliest");
        settings.put("receive.buffer.bytes", 2 << 20);
        long wanted = Long.parseLong(args[2]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
                .map(info -> new TopicPartition(info.topic(), info.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            for (int turn = 0; turn < Integer.parseInt(args[3]); turn++) {
                consumer.seekToBeginning(partitions);
                long records = 0, bytes = 0, started = System.nanoTime();
                while (records < wanted) {
                    ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofSeconds(10));
                    if (polled.isEmpty()) {
                        throw new IllegalStateException(records + " of " + wanted + " records");
                    }
                    for (ConsumerRecord<byte[], byte[]> record : polled) {
                        records++;
                        bytes += record.value().length;
                    }
                }
                System.out.println(records + " " + bytes + " " + (System.nanoTime() - started) / 1e9);
            }
        }
    }
}
