// Checks a history of locks, semaphores and latches with porcupine.
//
// Standard input: a JSON array of operations. Standard output: one line for each name whose operations no order
// explains in which each of them takes effect at one moment between its call and its return. Argument: how the paths
// of the pictures of such histories begin.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// What porcupine may take for one name.
const timeLimit = 60 * time.Second

type operation struct {
	Name   string
	Word   string // acquire or release; of a latch set and a number, down, wait, count or forget
	Mode   string // exclusive, shared, how many may hold it at once, or latch
	Owner  string
	Hold   string // for the picture
	Token  int64
	Result string // of a latch's call
	Call   int64
	Return int64
}

// The holds of one name: the levels of each owner and mode, in a form that can be compared.
type state struct {
	levels string
	token  int64
}

func (s state) read() map[string]int {
	levels := map[string]int{}
	for _, each := range strings.Fields(s.levels) {
		key, count, _ := strings.Cut(each, "=")
		levels[key], _ = strconv.Atoi(count)
	}
	return levels
}

func written(levels map[string]int) string {
	var all []string
	for key, count := range levels {
		if count > 0 {
			all = append(all, key+"="+strconv.Itoa(count))
		}
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

// Whether nobody else has what excludes this hold.
func admits(levels map[string]int, op operation) bool {
	if most, err := strconv.Atoi(op.Mode); err == nil {
		return len(levels) < most
	}
	for key := range levels {
		mode, owner, _ := strings.Cut(key, ":")
		if owner != op.Owner && (mode == "exclusive" || op.Mode == "exclusive") {
			return false
		}
	}
	return true
}

func stepOfLock(s state, op operation) (bool, state) {
	levels, key := s.read(), op.Mode+":"+op.Owner
	if op.Word == "release" {
		levels[key]--
		return levels[key] >= 0, state{written(levels), s.token}
	}
	if !admits(levels, op) {
		return false, s
	}
	token := s.token
	if op.Token != 0 {
		if op.Token <= token {
			return false, s
		}
		token = op.Token
	}
	levels[key]++
	return true, state{written(levels), token}
}

// The numbers that a latch may have after an operation. A call without a result may have had no effect.
func stepOfLatch(count int, op operation) []interface{} {
	next := count
	word, number, _ := strings.Cut(op.Word, "set")
	switch word {
	case "": // set and a number
		if op.Result != "unknown" && (count == 0) != (op.Result == "True") {
			return nil
		}
		if count == 0 {
			next, _ = strconv.Atoi(number)
		}
	case "down":
		if count > 0 {
			next = count - 1
		}
	case "forget":
		return []interface{}{count, 0}
	case "wait":
		if count != 0 {
			return nil
		}
	default:
		if op.Result != strconv.Itoa(count) {
			return nil
		}
	}
	if op.Result == "unknown" && next != count {
		return []interface{}{next, count}
	}
	return []interface{}{next}
}

func describe(op operation) string {
	if op.Mode == "latch" {
		return op.Word + ": " + op.Result
	}
	return fmt.Sprintf("%s %s %s", op.Word, op.Mode, op.Hold)
}

var locks = porcupine.Model{
	Init:              func() interface{} { return state{} },
	Step:              func(s, input, _ interface{}) (bool, interface{}) { return stepOfLock(s.(state), input.(operation)) },
	DescribeOperation: func(input, _ interface{}) string { return describe(input.(operation)) },
	DescribeState:     func(s interface{}) string { return s.(state).levels },
}

var latches = porcupine.NondeterministicModel{
	Init:              func() []interface{} { return []interface{}{0} },
	Step:              func(s, input, _ interface{}) []interface{} { return stepOfLatch(s.(int), input.(operation)) },
	DescribeOperation: func(input, _ interface{}) string { return describe(input.(operation)) },
}

func main() {
	var all []operation
	if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	histories := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	for _, op := range all {
		if _, known := clients[op.Owner]; !known {
			clients[op.Owner] = len(clients)
		}
		histories[op.Name] = append(histories[op.Name], porcupine.Operation{
			ClientId: clients[op.Owner], Input: op, Call: op.Call, Return: op.Return})
	}
	for name, history := range histories {
		model := locks
		if history[0].Input.(operation).Mode == "latch" {
			model = latches.ToModel()
		}
		result := porcupine.CheckOperationsTimeout(model, history, timeLimit)
		if result == porcupine.Ok {
			continue
		}
		if result == porcupine.Unknown {
			fmt.Printf("not judged within %s: %q\n", timeLimit, name)
			continue
		}
		_, info := porcupine.CheckOperationsVerbose(model, history, timeLimit)
		picture := os.Args[1] + "-" + name + ".html"
		if err := porcupine.VisualizePath(model, info, picture); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("no history of a lock: %q, see %s\n", name, picture)
	}
}
