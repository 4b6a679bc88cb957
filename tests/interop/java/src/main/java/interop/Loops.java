package interop;

import com.google.gson.JsonObject;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.client.codec.StringCodec;

/** What runs many times in one command. */
final class Loops {
    /** Nanoseconds for which a worker is outside at most, so that the others have their turns with any kind of lock. */
    private static final int PAUSE = 2_000_000;

    private Loops() {}

    private interface Enter {
        Object call() throws InterruptedException;
    }

    /** Excludes all others from when it is entered until it is left. */
    private record Exclusive(Enter enter, Consumer<Object> leave) {}

    /**
     * Adds one to a counter for some seconds, in two commands that only the object keeps together. Returns how often. With
     * "reads" the counter is read twice instead, and must not have changed.
     */
    static Object increment(Clients clients, JsonObject command) throws Exception {
        JsonObject described = command.getAsJsonObject("object");
        Exclusive exclusive = exclusive(clients.target(described).object());
        RBucket<String> counter = clients.client(described.get("client").getAsString())
            .getBucket(command.get("counter").getAsString(), StringCodec.INSTANCE);
        boolean reads = command.get("reads").getAsBoolean();
        long end = System.nanoTime() + (long) (command.get("seconds").getAsDouble() * 1e9);
        long times = 0;
        while (System.nanoTime() < end) {
            Object entered = exclusive.enter().call();
            try {
                String before = counter.get();
                if (reads) {
                    check(before, counter.get());
                } else {
                    counter.set(String.valueOf(Long.parseLong(before) + 1));
                }
                times++;
            } finally {
                exclusive.leave().accept(entered);
            }
            LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(PAUSE));
        }
        return times;
    }

    private static void check(String before, String after) {
        if (!before.equals(after)) {
            throw new IllegalStateException("a writer got in beside a reader: " + before + ", " + after);
        }
    }

    private static Exclusive exclusive(Object object) {
        if (object instanceof RLock lock) {
            return new Exclusive(() -> {
                lock.lock();
                return null;
            }, entered -> lock.unlock());
        }
        if (object instanceof RSemaphore semaphore) {
            return new Exclusive(() -> {
                semaphore.acquire();
                return null;
            }, entered -> semaphore.release());
        }
        RPermitExpirableSemaphore permits = (RPermitExpirableSemaphore) object;
        return new Exclusive(permits::acquire, permit -> permits.release((String) permit));
    }
}
