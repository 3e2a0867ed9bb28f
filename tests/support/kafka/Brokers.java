import java.io.FileReader;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import org.apache.kafka.common.utils.Time;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.FileAppender;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.layout.PatternLayout;

/**
 * Starts and stops whole Kafka servers in the process of {@code Tools}: classes are loaded and compiled once.
 *
 * <p>{@code start PROPERTIES LOG} and {@code stop PROPERTIES}, with the path of a server.properties.
 */
public final class Brokers {
  private static final String LAYOUT = "[%d] %p %m (%c)%n";
  private static final Map<String, KafkaRaftServer> RUNNING = new HashMap<>();

  public static void main(String[] words) throws Exception {
    if (words[0].equals("start")) {
      logTo(words[1], words[2]);
      Properties properties = new Properties();
      try (FileReader file = new FileReader(words[1])) {
        properties.load(file);
      }
      KafkaRaftServer server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
      try {
        server.startup();
      } catch (Throwable thrown) {
        server.shutdown();
        logNoMoreTo(words[1]);
        throw thrown;
      }
      RUNNING.put(words[1], server);
    } else {
      KafkaRaftServer server = RUNNING.remove(words[1]);
      server.shutdown();
      server.awaitShutdown();
      logNoMoreTo(words[1]);
    }
  }

  /** All that the process says from INFO on goes to the file of each broker that runs. */
  private static void logTo(String name, String path) {
    LoggerContext context = (LoggerContext) LogManager.getContext(false);
    LoggerConfig root = context.getConfiguration().getRootLogger();
    PatternLayout layout = PatternLayout.newBuilder().withPattern(LAYOUT).build();
    FileAppender appender =
        FileAppender.newBuilder().setName(name).setLayout(layout).withFileName(path).withAppend(false).build();
    appender.start();
    root.addAppender(appender, Level.INFO, null);
    root.setLevel(Level.INFO);
    context.updateLoggers();
  }

  private static void logNoMoreTo(String name) {
    LoggerContext context = (LoggerContext) LogManager.getContext(false);
    LoggerConfig root = context.getConfiguration().getRootLogger();
    root.getAppenders().get(name).stop();
    root.removeAppender(name);
    context.updateLoggers();
  }
}
