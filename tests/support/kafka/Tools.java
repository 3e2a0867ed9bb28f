import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main classes of Kafka's tools one after another, so that Java starts once for all of them.
 *
 * <p>A request on standard input: the number of words (the class and its arguments), each word, and what the
 * tool reads from its own standard input; each with its length before it. The answer: the tool's exit code,
 * its standard output, its standard error. An exit ends the tool and not the process.
 */
public final class Tools {
  private static final class Ended extends Error {
    Ended() {
      super("", null, false, false);
    }

    /** Tools that catch everything print it. */
    @Override
    public String toString() {
      return "";
    }
  }

  private static final List<Runnable> HOOKS = new ArrayList<>();
  private static Integer firstExit;

  public static void main(String[] ignored) throws Exception {
    DataInputStream requests = new DataInputStream(System.in);
    DataOutputStream answers = new DataOutputStream(System.out);
    // What a thread of a tool says after the tool's end is no part of an answer.
    System.setOut(System.err);
    Exit.setExitProcedure((code, message) -> end(code));
    Exit.setHaltProcedure((code, message) -> end(code));
    Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
    while (true) {
      int count;
      try {
        count = requests.readInt();
      } catch (EOFException end) {
        return;
      }
      String[] words = new String[count];
      for (int i = 0; i < count; i++) {
        words[i] = new String(bytes(requests), StandardCharsets.UTF_8);
      }
      answer(answers, words, bytes(requests));
    }
  }

  private static void end(int code) {
    if (firstExit == null) {
      firstExit = code;
    }
    throw new Ended();
  }

  private static byte[] bytes(DataInputStream from) throws IOException {
    byte[] read = new byte[from.readInt()];
    from.readFully(read);
    return read;
  }

  private static void answer(DataOutputStream answers, String[] words, byte[] input) throws Exception {
    InputStream in = System.in;
    PrintStream out = System.out;
    PrintStream err = System.err;
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    ByteArrayOutputStream complained = new ByteArrayOutputStream();
    System.setIn(new ByteArrayInputStream(input));
    System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
    System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
    int code;
    try {
      code = run(words);
    } finally {
      System.out.flush();
      System.err.flush();
      System.setIn(in);
      System.setOut(out);
      System.setErr(err);
    }
    answers.writeInt(code);
    for (ByteArrayOutputStream each : new ByteArrayOutputStream[] {said, complained}) {
      answers.writeInt(each.size());
      each.writeTo(answers);
    }
    answers.flush();
  }

  private static int run(String[] words) throws ReflectiveOperationException {
    String[] arguments = Arrays.copyOfRange(words, 1, words.length);
    int code = 0;
    firstExit = null;
    try {
      Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
    } catch (InvocationTargetException thrown) {
      if (!(thrown.getCause() instanceof Ended)) {
        thrown.getCause().printStackTrace();
        code = 1;
      }
    }
    HOOKS.forEach(Runnable::run);
    HOOKS.clear();
    runHooksOfJava();
    return firstExit == null ? code : firstExit;
  }

  /** Some tools finish their work in a hook of Java's own (needs --add-opens java.base/java.lang=ALL-UNNAMED). */
  private static void runHooksOfJava() throws ReflectiveOperationException {
    Field field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
    field.setAccessible(true);
    for (Object hook : ((Map<?, ?>) field.get(null)).keySet().toArray()) {
      String of = hook.getClass().getName();
      if (of.startsWith("org.apache.kafka.") || hook.getClass() == Thread.class) {
        Runtime.getRuntime().removeShutdownHook((Thread) hook);
        ((Thread) hook).run();
      }
    }
  }
}
