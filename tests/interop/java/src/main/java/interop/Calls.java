package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RObject;

/** Calls a method by its name, with arguments from JSON. */
final class Calls {
    private Calls() {}

    static Object call(Clients.Target target, String name, JsonArray args) throws ReflectiveOperationException {
        // Locks are RObjects, too: only their interfaces don't say so.
        for (Class<?> type : List.of(target.type(), RObject.class)) {
            for (Method method : type.getMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == args.size()) {
                    List<Object> converted = convert(args, method.getParameterTypes());
                    if (converted != null) {
                        return method.invoke(target.object(), converted.toArray());
                    }
                }
            }
        }
        throw new NoSuchMethodException(target.type().getSimpleName() + "." + name + args);
    }

    /** The arguments as those types; null if another overload of the method is meant. */
    private static List<Object> convert(JsonArray args, Class<?>[] types) {
        List<Object> converted = new ArrayList<>();
        for (int i = 0; i < types.length; i++) {
            Object argument = convert(args.get(i), types[i]);
            if (argument == null) {
                return null;
            }
            converted.add(argument);
        }
        return converted;
    }

    private static Object convert(JsonElement value, Class<?> type) {
        if (value.isJsonArray()) {
            List<String> texts = new ArrayList<>();
            value.getAsJsonArray().forEach(element -> texts.add(element.getAsString()));
            return type.isInstance(texts) ? texts : null;
        }
        if (value.getAsJsonPrimitive().isNumber()) {
            if (type == long.class) {
                return value.getAsLong();
            }
            return type == int.class ? value.getAsInt() : null;
        }
        String text = value.getAsString();
        if (type == TimeUnit.class && !text.startsWith("P")) {
            return TimeUnit.valueOf(text);
        }
        if (type == Duration.class && text.startsWith("P")) {
            return Duration.parse(text);
        }
        return type == String.class ? text : null;
    }
}
