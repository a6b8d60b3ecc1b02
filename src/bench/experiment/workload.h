// What a benchmark measures: operations of one kind. A workload says what can be varied, whether a
// point can be carried out, what the threads of a node do, and how its results read. Everything
// else (plans, nodes, phases, files, options) is the same for all, and names none of them.
//
// A workload lies in a folder of its own; workloads.cc lists it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/point.h"
#include "verbena/device.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

struct NodeJob;
struct PointResult;
struct ThreadReport;

// Threads of a node that have something to do. A node of WiredNode has some of the first two; those
// with requesting threads have one dispatcher where the point's model says so.
enum class ThreadRole : uint8_t { kRequesting, kResponding, kDispatching };
// Takes the steps of the team (thread_team.h) until it leaves; `number` is the thread's in the
// wiring (of a dispatcher: in NodeJob::connections()).
using ThreadBody = void (*)(NodeJob& job, uint32_t number, ThreadReport& report);

// A metric that is the workload's own: one of Report::counters, of all threads together, for each
// of another one.
struct ShareMetric {
  std::string_view json;      // the key in results
  std::string_view former{};  // the key in results of earlier versions
  size_t part;
  size_t whole;
};

// What nodes are called: those with requesting threads, with responding ones, and with both.
struct NodeNames {
  std::string_view requesting = "requester";
  std::string_view responding = "responder";
  std::string_view both = "node";
};

// The command of the tool that measures it.
struct WorkloadCommand {
  std::string_view name;     // "verbs"
  std::string_view group{};  // "app", where it is `verbena app NAME`
  // Empty where the tool has written the command by itself, as that for requests and responses.
  std::string_view summary{};
  std::string_view help{};
  std::string_view operations_help{};  // of --operations
  std::span<const std::string_view> examples{};
  // A launcher can start it on several hosts; no axis is called as an option for that (--size).
  bool over_hosts = false;
};

// "verbs", "app hashtable".
std::string command_words(const WorkloadCommand& command);

struct WorkloadTraits {
  std::string_view name;     // in experiment files ('kind') and between processes: "verbs"
  std::string_view subject;  // in errors: "raw verbs"
  bool has_topology;         // the user chooses one; else fit() does
  bool verifies;             // the bytes of the payload can be checked
  bool soft_huge_pages;      // huge pages make a difference even on the software RNIC
  // From the slowest changing to the fastest in a sweep; what is compared comes last.
  std::span<const Axis> axes;
  // Of these axes line_text() tells.
  std::span<const std::string_view> line_axes;
  std::span<const ShareMetric> metrics{};
  // Kinds of operations, whose latencies are told apart (closed_loop.h).
  std::span<const std::string_view> kinds{};
  // What is received decides what happens next, so a simulation has to carry all of it.
  bool reads_payload = false;
  NodeNames node_names{};
  WorkloadCommand command;
};

// Payload of one operation.
struct OperationBytes {
  uint64_t value = 0;  // what it is done for: a response, as the papers count
  uint64_t total = 0;  // all that travels
};

class Workload {
 public:
  explicit constexpr Workload(const WorkloadTraits& traits) : traits_(traits) {}
  virtual ~Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  const WorkloadTraits& traits() const { return traits_; }
  // By name or alias; null if there is none.
  const Axis* find_axis(std::string_view name) const;
  // For errors: "pending, size, entries".
  std::string axis_names() const;

  // --- points ---

  // A point with each axis at what is usual.
  virtual Point point() const = 0;
  // With everything filled in that follows from what was chosen. kInvalidArgument where that
  // contradicts itself.
  virtual Result<Point> fit(Point point) const = 0;
  // Whether a device and a machine with so much memory can carry it out: kLimitExceeded,
  // kUnsupported.
  virtual Status check(const Point& point, const DeviceInfo& device,
                       uint64_t available_bytes) const = 0;
  // Over all nodes.
  virtual uint64_t memory_bytes(const Point& point) const = 0;

  // --- nodes ---

  // How many messages an operation takes, about: a simulation has so many fewer operations.
  virtual uint64_t messages_of_operation(const Point& /*point*/) const { return 1; }
  // The shortest run of a simulation, whose second half is what is measured.
  virtual uint64_t least_simulated_ns(const Point& /*point*/) const { return 0; }
  virtual ThreadBody body(ThreadRole role, const Point& point) const = 0;
  // What the connections really use in place of what the point asked for.
  virtual void adopt(Point& /*point*/, MarkLayout /*used*/) const {}

  // Whether an operation is a message and the answer to it, whose way `sim explain` can show.
  virtual bool is_followed(const Point& /*point*/) const { return false; }

  // --- results ---

  virtual OperationBytes operation_bytes(const Point& point) const = 0;
  // In short, for progress and errors: "write, 64 B, 1 pending".
  virtual std::string text(const Point& point) const = 0;
  // What its line is called in a figure: "write".
  virtual std::string line_text(const Point& point) const = 0;
  // For the terminal: one line per point, and a legend below.
  virtual std::string table(const std::vector<PointResult>& results) const = 0;
  // Where the time goes, of points that have a profile.
  virtual std::string profiles_table(const std::vector<PointResult>& /*results*/) const {
    return {};
  }

 private:
  WorkloadTraits traits_;
};

}  // namespace verbena::bench
