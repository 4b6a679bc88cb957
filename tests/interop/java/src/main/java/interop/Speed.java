package interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RLock;

/** What the benchmarks measure: many locks, many threads, in one command. */
final class Speed {
    private Speed() {}

    /** Locks and unlocks for some seconds, in a thread for each of the locks. Returns the pairs of all. */
    static Object pairs(Clients clients, JsonObject command) throws Exception {
        long end = end(command);
        AtomicLong pairs = new AtomicLong();
        together(locks(clients, command), lock -> {
            long times = 0;
            while (System.nanoTime() < end) {
                lock.lock();
                lock.unlock();
                times++;
            }
            pairs.addAndGet(times);
        });
        return pairs.get();
    }

    /** The same without threads that block: each lock has a chain of calls, and an owner's id of its own. */
    static Object asyncPairs(Clients clients, JsonObject command) throws Exception {
        long end = end(command);
        AtomicLong pairs = new AtomicLong();
        List<CompletableFuture<Void>> chains = new ArrayList<>();
        for (RLock lock : locks(clients, command)) {
            CompletableFuture<Void> chain = new CompletableFuture<>();
            chains.add(chain);
            next(lock, 1_000_000 + chains.size(), end, pairs, chain);
        }
        CompletableFuture.allOf(chains.toArray(new CompletableFuture<?>[0])).get();
        return pairs.get();
    }

    private static void next(RLock lock, long owner, long end, AtomicLong pairs, CompletableFuture<Void> chain) {
        CompletionStage<Void> pair = lock.lockAsync(owner).thenCompose(locked -> lock.unlockAsync(owner));
        pair.whenComplete((released, error) -> {
            if (error != null) {
                chain.completeExceptionally(error);
            } else if (System.nanoTime() >= end) {
                chain.complete(null);
            } else {
                pairs.incrementAndGet();
                next(lock, owner, end, pairs, chain);
            }
        });
    }

    /** Each of many threads locks and unlocks once. Returns the time at which the last of them had the lock. */
    static Object drain(Clients clients, JsonObject command) throws Exception {
        RLock lock = clients.target(command.getAsJsonObject("object")).lock();
        int count = command.get("threads").getAsInt();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(null, () -> {
                lock.lock();
                last.accumulateAndGet(System.nanoTime(), Math::max);
                lock.unlock();
                done.countDown();
            }, "waiter " + i, 256 * 1024);
            thread.setDaemon(true);
            thread.start();
        }
        done.await();
        return last.get();
    }

    /** Locks many locks, and leaves them locked. */
    static Object hold(Clients clients, JsonObject command) throws Exception {
        String client = command.get("client").getAsString();
        for (int i = 0; i < command.get("locks").getAsInt(); i++) {
            clients.client(client).getLock("lock-" + i).lock();
        }
        return null;
    }

    private interface Work {
        void with(RLock lock);
    }

    private static void together(List<RLock> locks, Work work) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (RLock lock : locks) {
            threads.add(new Thread(() -> work.with(lock)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static List<RLock> locks(Clients clients, JsonObject command) throws ReflectiveOperationException {
        List<RLock> locks = new ArrayList<>();
        for (JsonElement described : command.getAsJsonArray("objects")) {
            locks.add(clients.target(described.getAsJsonObject()).lock());
        }
        return locks;
    }

    private static long end(JsonObject command) {
        return System.nanoTime() + (long) (command.get("seconds").getAsDouble() * 1e9);
    }
}
