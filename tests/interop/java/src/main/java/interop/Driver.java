package interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

/**
 * Carries out commands from standard input, one JSON object a line, and answers each with one line of JSON.
 *
 * <p>A command names the thread on which it runs, because a thread is what owns a lock. Commands of one thread run one
 * after the other, commands of several threads at the same time: so an answer carries the id of its command, and a
 * thread that waits for a lock delays nobody else. The process ends when standard input does, so it never outlives the
 * tests.
 */
public final class Driver {
    private final Gson gson = new GsonBuilder().serializeNulls().create();
    private final PrintStream answers;
    private final Clients clients = new Clients();
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();

    private Driver(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws IOException {
        Driver driver = new Driver(System.out);
        // Only answers belong on standard output, whatever a library prints.
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            driver.begin(JsonParser.parseString(line).getAsJsonObject());
        }
        // Without shutting the clients down: what a process leaves behind that just ends is part of the tests.
        Runtime.getRuntime().halt(0);
    }

    private void begin(JsonObject command) {
        String thread = command.get("thread").getAsString();
        if (command.get("do").getAsString().equals("sleeps")) {
            // Not on the thread itself, which is busy.
            answer(command, "result", sleeps(workers.get(thread).thread), System.nanoTime());
        } else {
            workers.computeIfAbsent(thread, Worker::new).executor.execute(() -> carryOut(command));
        }
    }

    /** Whether a thread sleeps until a message comes. Redisson uses a semaphore for that, and not for replies. */
    private static boolean sleeps(Thread thread) {
        StackTraceElement[] frames = thread.getStackTrace();
        return frames.length > 0 && frames[0].getMethodName().equals("park")
            && Arrays.stream(frames).anyMatch(frame -> frame.getClassName().equals(Semaphore.class.getName()));
    }

    private void carryOut(JsonObject command) {
        long began = System.nanoTime();
        try {
            answer(command, "result", result(command), began);
        } catch (Throwable error) {
            Throwable cause = error instanceof InvocationTargetException ? error.getCause() : error;
            Map<String, String> reported = new LinkedHashMap<>();
            reported.put("type", cause.getClass().getSimpleName());
            reported.put("message", String.valueOf(cause.getMessage()));
            answer(command, "error", reported, began);
        }
    }

    private Object result(JsonObject command) throws Exception {
        return switch (command.get("do").getAsString()) {
            case "connect" -> clients.connect(command.get("yaml").getAsString(), command.get("prefix").getAsString());
            case "shutdown" -> clients.shutdown(command.get("client").getAsString());
            case "port" -> clients.port(command.get("client").getAsString(), command.get("slot").getAsInt());
            case "thread id" -> Thread.currentThread().getId();
            case "call" -> {
                Clients.Target target = clients.target(command.getAsJsonObject("object"));
                yield Calls.call(target, command.get("method").getAsString(), command.getAsJsonArray("args"));
            }
            case "increment" -> Loops.increment(clients, command);
            case "pairs" -> Speed.pairs(clients, command);
            case "async pairs" -> Speed.asyncPairs(clients, command);
            case "drain" -> Speed.drain(clients, command);
            case "hold" -> Speed.hold(clients, command);
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    /** Times are those of the system's monotonic clock, which Python's time.monotonic_ns() reads as well. */
    private void answer(JsonObject command, String key, Object value, long began) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.get("id").getAsLong());
        answer.put("began", began);
        answer.put("ended", System.nanoTime());
        answer.put(key, value);
        synchronized (answers) {
            answers.writeBytes((gson.toJson(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    /** A thread of a name, and the commands that wait for it. */
    private static final class Worker {
        final ExecutorService executor;
        volatile Thread thread;

        Worker(String name) {
            executor = Executors.newSingleThreadExecutor(work -> {
                thread = new Thread(work, name);
                thread.setDaemon(true);
                return thread;
            });
        }
    }
}
