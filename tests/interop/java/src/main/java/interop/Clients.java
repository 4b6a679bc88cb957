package interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The clients of this process, each with an id of its own as in a process of its own, and the objects made by them. */
final class Clients {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, Target> targets = new ConcurrentHashMap<>();

    /** An object, and the interface by which it is called: its class need not be public. */
    record Target(Object object, Class<?> type) {
        RLock lock() {
            return (RLock) object;
        }
    }

    /** The name mapper of the client puts that prefix before each name. */
    String connect(String yaml, String prefix) throws IOException, ReflectiveOperationException {
        Config config = Config.fromYAML(yaml);
        if (!prefix.isEmpty()) {
            setNameMapper(config, prefix);
        }
        RedissonClient client = Redisson.create(config);
        clients.put(client.getId(), client);
        return client.getId();
    }

    /** The mapper's interface, and the object that takes it, differ between the versions of Redisson. */
    private static void setNameMapper(Config config, String prefix) throws ReflectiveOperationException {
        Object[] takers = {config, config.isClusterConfig() ? config.useClusterServers() : config.useSingleServer()};
        for (Object taker : takers) {
            for (Method method : taker.getClass().getMethods()) {
                if (method.getName().equals("setNameMapper") && !method.isBridge()) {
                    Class<?> type = method.getParameterTypes()[0];
                    Class<?>[] types = {type};
                    method.invoke(taker, Proxy.newProxyInstance(type.getClassLoader(), types, mapper(prefix)));
                    return;
                }
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    private static InvocationHandler mapper(String prefix) {
        return (proxy, method, args) -> switch (method.getName()) {
            case "map" -> prefix + args[0];
            case "unmap" -> ((String) args[0]).substring(prefix.length());
            case "toString" -> prefix;
            case "hashCode" -> prefix.hashCode();
            case "equals" -> proxy == args[0];
            default -> throw new UnsupportedOperationException(method.getName());
        };
    }

    Object shutdown(String id) {
        targets.keySet().removeIf(key -> key.contains(id));
        clients.remove(id).shutdown(0, 5, TimeUnit.SECONDS);
        return null;
    }

    RedissonClient client(String id) {
        return clients.get(id);
    }

    /** The port of the node that serves the slot, as far as the client has followed the cluster. */
    Object port(String id, int slot) {
        Redisson client = (Redisson) clients.get(id);
        return client.getCommandExecutor().getConnectionManager().getEntry(slot).getClient().getAddr().getPort();
    }

    /** The same object for all threads, as a service would keep it in a field: Redisson's locks have state of their own. */
    Target target(JsonObject described) throws ReflectiveOperationException {
        Target known = targets.get(described.toString());
        if (known != null) {
            return known;
        }
        Target made = make(described);
        Target other = targets.putIfAbsent(described.toString(), made);
        return other == null ? made : other;
    }

    private Target make(JsonObject described) throws ReflectiveOperationException {
        RedissonClient client = clients.get(described.get("client").getAsString());
        String kind = described.get("kind").getAsString();
        String name = described.get("name").getAsString();
        return switch (kind) {
            case "Lock" -> new Target(client.getLock(name), RLock.class);
            case "FairLock" -> new Target(client.getFairLock(name), RLock.class);
            case "SpinLock" -> new Target(client.getSpinLock(name), RLock.class);
            case "FencedLock" -> new Target(client.getFencedLock(name), RFencedLock.class);
            case "ReadLock" -> new Target(client.getReadWriteLock(name).readLock(), RLock.class);
            case "WriteLock" -> new Target(client.getReadWriteLock(name).writeLock(), RLock.class);
            case "MultiLock" -> new Target(client.getMultiLock(members(described)), RLock.class);
            case "RedLock" -> new Target(client.getRedLock(members(described)), RLock.class);
            case "Semaphore" -> new Target(client.getSemaphore(name), RSemaphore.class);
            case "CountDownLatch" -> new Target(client.getCountDownLatch(name), RCountDownLatch.class);
            case "PermitExpirableSemaphore" ->
                new Target(client.getPermitExpirableSemaphore(name), RPermitExpirableSemaphore.class);
            // These are new in 4.4, so the older version has no method to compile against.
            case "NonReentrantLock", "NonReentrantFairLock" -> new Target(
                RedissonClient.class.getMethod("get" + kind, String.class).invoke(client, name), RLock.class);
            default -> throw new IllegalArgumentException("no such kind: " + kind);
        };
    }

    private RLock[] members(JsonObject described) throws ReflectiveOperationException {
        List<RLock> members = new ArrayList<>();
        for (JsonElement member : described.getAsJsonArray("members")) {
            members.add(target(member.getAsJsonObject()).lock());
        }
        return members.toArray(new RLock[0]);
    }
}
