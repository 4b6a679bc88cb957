// Java and Python sell from one stock, under one lock: Redisson's and pyredisson's, which are the same keys.
// Start it beside worker.py; pom.xml says how. PYREDISSON_URL names the Redis.
// Both wait for each other at a latch.
package example;

import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public final class Shop {
    private Shop() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        String url = System.getenv().getOrDefault("PYREDISSON_URL", "redis://localhost:6379/0");
        Config config = new Config();
        config.useSingleServer().setAddress(url.substring(0, url.lastIndexOf('/')));
        RedissonClient client = Redisson.create(config);
        try {
            RCountDownLatch opening = client.getCountDownLatch("opening");
            opening.trySetCount(2); // whoever comes first sets it
            opening.countDown();
            opening.await();
            System.out.println("java sold " + sell(client));
        } finally {
            client.shutdown();
        }
    }

    private static int sell(RedissonClient client) throws InterruptedException {
        RLock lock = client.getFairLock("stock:lock");
        RBucket<String> stock = client.getBucket("stock", StringCodec.INSTANCE);
        for (int sold = 0; ; sold++) {
            lock.lock();
            try {
                int left = Integer.parseInt(stock.get());
                if (left == 0) {
                    return sold;
                }
                Thread.sleep(1); // the work
                stock.set(Integer.toString(left - 1));
            } finally {
                lock.unlock();
            }
        }
    }
}
