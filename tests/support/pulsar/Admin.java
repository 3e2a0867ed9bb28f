// Administers compaction through Pulsar's own client, as its users do: java -cp LIBS Admin.java URL
// Prints a line "step: outcome" for each step; an exception of the client is its class and its status.

import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.common.policies.data.CompactionStats;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;
import org.apache.pulsar.common.policies.data.TopicStats;

public class Admin {
    interface Action {
        void run() throws Exception;
    }

    static final String NAMESPACE = "public/default";
    static final String TOPIC = "persistent://public/default/users";
    static final String PARTITION = TOPIC + "-partition-0";

    static void told(String step, Callable<Object> call) throws Exception {
        String outcome;
        try {
            outcome = String.valueOf(call.call());
        } catch (PulsarAdminException error) {
            outcome = error.getClass().getSimpleName() + " " + error.getStatusCode();
        }
        System.out.println(step + ": " + outcome);
    }

    static void done(String step, Action action) throws Exception {
        told(step, () -> {
            action.run();
            return "done";
        });
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build()) {
            thresholds(admin);
            compaction(admin);
            statistics(admin);
            errors(admin);
        }
    }

    static void thresholds(PulsarAdmin admin) throws Exception {
        told("topic without", () -> admin.topicPolicies().getCompactionThreshold(TOPIC));
        done("topic set", () -> admin.topicPolicies().setCompactionThreshold(TOPIC, 104857600L));
        told("topic get", () -> admin.topicPolicies().getCompactionThreshold(TOPIC));
        told("topic applied", () -> admin.topicPolicies().getCompactionThreshold(TOPIC, true));
        done("topic removed", () -> admin.topicPolicies().removeCompactionThreshold(TOPIC));
        told("topic after", () -> admin.topicPolicies().getCompactionThreshold(TOPIC));
        told("namespace without", () -> admin.namespaces().getCompactionThreshold(NAMESPACE));
        done("namespace set", () -> admin.namespaces().setCompactionThreshold(NAMESPACE, 7L));
        told("namespace get", () -> admin.namespaces().getCompactionThreshold(NAMESPACE));
        told("topic applies it", () -> admin.topicPolicies().getCompactionThreshold(TOPIC, true));
        done("namespace removed", () -> admin.namespaces().removeCompactionThreshold(NAMESPACE));
        told("topic applies none", () -> admin.topicPolicies().getCompactionThreshold(TOPIC, true));
    }

    static void compaction(PulsarAdmin admin) throws Exception {
        told("status before", () -> admin.topics().compactionStatus(TOPIC).status);
        done("triggered", () -> admin.topics().triggerCompaction(TOPIC));
        LongRunningProcessStatus found = admin.topics().compactionStatus(TOPIC);
        long until = System.nanoTime() + 60_000_000_000L;
        while (found.status == LongRunningProcessStatus.Status.RUNNING && System.nanoTime() < until) {
            Thread.sleep(20);
            found = admin.topics().compactionStatus(TOPIC);
        }
        System.out.println("status after: " + found.status + " '" + found.lastError + "'");
        told("status of a partition", () -> admin.topics().compactionStatus(PARTITION).status);
    }

    static void statistics(PulsarAdmin admin) throws Exception {
        told("partitions", () -> admin.topics().getPartitionedTopicMetadata(TOPIC).partitions);
        TopicStats stats = admin.topics().getStats(PARTITION);
        CompactionStats compaction = stats.getCompaction();
        System.out.println("stored: " + (stats.getStorageSize() > 0));
        System.out.println("backlog: " + stats.getBacklogSize());
        System.out.println("succeeded: " + (compaction.getLastCompactionSucceedTimestamp() > 0));
        System.out.println("failed: " + compaction.getLastCompactionFailedTimestamp());
        PersistentTopicInternalStats internal = admin.topics().getInternalStats(PARTITION);
        System.out.println("last entry: " + internal.lastConfirmedEntry);
        System.out.println("ledger entries: " + internal.compactedLedger.entries);
        System.out.println("ledger: " + (internal.compactedLedger.ledgerId >= 0 && internal.compactedLedger.size > 0));
        System.out.println("cursor: " + internal.cursors.get("__compaction").markDeletePosition);
    }

    static void errors(PulsarAdmin admin) throws Exception {
        String none = "persistent://public/default/none";
        done("unknown topic", () -> admin.topics().triggerCompaction(none));
        told("status of unknown", () -> admin.topics().compactionStatus(none).status);
        told("threshold of unknown", () -> admin.topicPolicies().getCompactionThreshold(none));
        done("not persistent", () -> admin.topics().triggerCompaction("non-persistent://public/default/users"));
        done("negative", () -> admin.topicPolicies().setCompactionThreshold(TOPIC, -1L));
        done("negative namespace", () -> admin.namespaces().setCompactionThreshold(NAMESPACE, -1L));
        done("bad namespace", () -> admin.namespaces().setCompactionThreshold("pub.lic/default", 1L));
        done("bad topic", () -> admin.topics().triggerCompaction("persistent://pub.lic/default/users"));
    }
}
