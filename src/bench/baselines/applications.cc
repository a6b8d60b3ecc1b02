#include "src/bench/baselines/applications.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/memory/arena.h"
#include "verbena/apps/hashtable.h"
#include "verbena/apps/log.h"
#include "verbena/remote.h"

namespace verbena::bench::baselines {

namespace {

double per_second(uint64_t count, uint64_t begun_ns) {
  return static_cast<double>(count) / static_cast<double>(now_ns() - begun_ns) * 1e9;
}

// --- the hashtable ---

constexpr HashtableFormat kFormat = {.entries = KeyValuePlan::kKeys,
                                     .max_key_bytes = KeyValuePlan::kKeyBytes,
                                     .max_value_bytes = KeyValuePlan::kValueBytes};

Status serve_table(const ConnectedSide& own) {
  VERBENA_ASSIGN_OR_RETURN(const uint64_t size_bytes, hashtable_bytes(kFormat));
  VERBENA_ASSIGN_OR_RETURN(const auto region,
                           expose_region(own.device, own.domain, {.size_bytes = size_bytes}));
  const std::span<char> memory(region->data(), region->size_bytes());
  VERBENA_RETURN_IF_ERROR(format_hashtable(memory, kFormat));
  KeyValueLoad load;
  VERBENA_RETURN_IF_ERROR(fill_hashtable(memory, KeyValuePlan::kKeys, [&load](uint64_t number) {
    const KeyValueLoad::Entry entry = load.entry(number);
    return HashtableEntry{entry.key, entry.value};
  }));
  VERBENA_RETURN_IF_ERROR(region->accept(own.control));
  return own.side.meet();
}

Status check(const Hashtable& table, const HashtableReply& reply, const KeyValuePlan& plan) {
  if (!table.status().ok()) return table.status();
  if (reply.outcome == HashtableOutcome::kDone &&
      (plan.updates || reply.value.size() == KeyValuePlan::kValueBytes)) {
    return Status::ok_status();
  }
  return {StatusCode::kProtocolViolation, "the hashtable has lost a key"};
}

Status use_one_at_a_time(Hashtable& table, KeyValueLoad& load, const KeyValuePlan& plan,
                         uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) {
    const KeyValueLoad::Entry entry = load.next();
    const HashtableReply reply =
        plan.updates ? table.update(entry.key, entry.value) : table.search(entry.key);
    VERBENA_RETURN_IF_ERROR(check(table, reply, plan));
  }
  return Status::ok_status();
}

Status use_pipelined(Hashtable& table, KeyValueLoad& load, const KeyValuePlan& plan,
                     uint64_t operations) {
  Status status;
  uint64_t posted = 0;
  for (uint64_t done = 0; done < operations && status.ok();) {
    while (posted < operations && posted - done < plan.pending) {
      const KeyValueLoad::Entry entry = load.next();
      const PostResult result = plan.updates ? table.post_update(entry.key, entry.value, posted)
                                             : table.post_search(entry.key, posted);
      if (result != PostResult::kPosted) break;
      ++posted;
    }
    done += table.poll([&](const HashtableReply& reply) {
      const Status checked = check(table, reply, plan);
      if (!checked.ok()) status = checked;
    });
    if (!table.status().ok()) return table.status();
  }
  return status;
}

Status use_table(const ConnectedSide& own, const KeyValuePlan& plan) {
  VERBENA_ASSIGN_OR_RETURN(const auto region,
                           open_region(own.device, own.domain, own.control,
                                       hashtable_region_options(kFormat, plan.pending)));
  VERBENA_ASSIGN_OR_RETURN(const auto table, Hashtable::open(*region));
  KeyValueLoad load;
  const auto use = plan.pending == 1 ? use_one_at_a_time : use_pipelined;
  VERBENA_RETURN_IF_ERROR(use(*table, load, plan, plan.operations / 10));  // to warm up
  const uint64_t begun_ns = now_ns();
  VERBENA_RETURN_IF_ERROR(use(*table, load, plan, plan.operations));
  own.side.set_result(per_second(plan.operations, begun_ns));
  return own.side.meet();
}

// --- the log ---

constexpr uint64_t kLogBytes = uint64_t{64} << 20;
constexpr uint32_t kPendingBatches = 4;

Status serve_log(const ConnectedSide& own) {
  VERBENA_ASSIGN_OR_RETURN(const auto store,
                           LogStore::expose(own.device, own.domain, {.capacity_bytes = kLogBytes}));
  // For the writer, and for who makes room.
  for (int i = 0; i < 2; ++i) VERBENA_RETURN_IF_ERROR(store->accept(own.control));
  while (own.side.board().ball[0].value.load(std::memory_order_acquire) == 0 &&
         !own.control.peer_closed()) {
    store->maintain();
    sleep_ns(1'000'000);
  }
  return own.side.meet();
}

Status append_all(LogWriter& writer, LogReader& reader, std::span<const LocalSlice> entries,
                  uint64_t batches) {
  // What is dropped at once is far less than the log.
  constexpr uint64_t kBatchesDropped = kLogBytes / 8 / (kAppendedBatch * kAppendedBytes);
  uint64_t posted = 0;
  for (uint64_t done = 0; done < batches;) {
    while (posted < batches && writer.post_append(entries, posted) == PostResult::kPosted) {
      if (++posted % kBatchesDropped != 0) continue;
      VERBENA_RETURN_IF_ERROR(reader.seek(LogStart::kNewest));
      VERBENA_RETURN_IF_ERROR(reader.trim());
    }
    done += writer.poll([](const LogCompletion&) {});
    VERBENA_RETURN_IF_ERROR(writer.status());
  }
  if (writer.statistics().appended_batches < batches) {
    return {StatusCode::kProtocolViolation, "the log has not appended all batches"};
  }
  return Status::ok_status();
}

Status append_to_log(const ConnectedSide& own, uint64_t batches) {
  ControlConnection* const replicas[] = {&own.control};
  VERBENA_ASSIGN_OR_RETURN(const auto writer, open_log_writer(own.device, own.domain, replicas,
                                                              {.pending = kPendingBatches,
                                                               .max_batch = kAppendedBatch}));
  VERBENA_ASSIGN_OR_RETURN(const auto reader, open_log_reader(own.device, own.domain, replicas));
  VERBENA_ASSIGN_OR_RETURN(
      const RegisteredArena memory,
      RegisteredArena::create(own.domain, kAppendedBatch * kAppendedBytes, IBV_ACCESS_LOCAL_WRITE));
  std::memset(memory.data(), 'e', kAppendedBatch * kAppendedBytes);
  std::vector<LocalSlice> entries;
  for (uint64_t i = 0; i < kAppendedBatch; ++i) {
    entries.push_back({&memory.region(), i * kAppendedBytes, kAppendedBytes});
  }
  VERBENA_RETURN_IF_ERROR(append_all(*writer, *reader, entries, batches / 10));  // to warm up
  const uint64_t begun_ns = now_ns();
  VERBENA_RETURN_IF_ERROR(append_all(*writer, *reader, entries, batches));
  own.side.set_result(per_second(batches * kAppendedBatch, begun_ns));
  own.side.board().ball[0].value.store(1, std::memory_order_release);
  return own.side.meet();
}

// --- a file ---

Status append_to_file(Side& side, uint64_t batches) {
  constexpr uint64_t kBatchesOfFile = kLogBytes / (kAppendedBatch * kAppendedBytes);
  std::string name = "/tmp/verbena-appends-XXXXXX";
  const FileDescriptor file(mkostemp(name.data(), O_CLOEXEC | O_APPEND));
  if (!file.valid()) {
    return {StatusCode::kUnavailable,
            fmt::format("cannot make a file in /tmp: {}", std::strerror(errno))};
  }
  unlink(name.c_str());
  std::array<char, kAppendedBatch * kAppendedBytes> bytes;
  bytes.fill('e');
  std::array<iovec, kAppendedBatch> entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i] = {.iov_base = bytes.data() + i * kAppendedBytes, .iov_len = kAppendedBytes};
  }
  const uint64_t begun_ns = now_ns();
  for (uint64_t i = 0; i < batches; ++i) {
    if (i % kBatchesOfFile == 0 && ftruncate(file.get(), 0) != 0) break;
    if (writev(file.get(), entries.data(), kAppendedBatch) != static_cast<ssize_t>(bytes.size())) {
      return {StatusCode::kUnavailable,
              fmt::format("cannot append to a file in /tmp: {}", std::strerror(errno))};
    }
  }
  side.set_result(per_second(batches * kAppendedBatch, begun_ns));
  return Status::ok_status();
}

}  // namespace

Result<double> hashtable_rate(const CpuPair& cpus, const KeyValuePlan& plan) {
  return run_connected_pair(cpus, [&plan](const ConnectedSide& own) {
    return own.side.number() == 0 ? use_table(own, plan) : serve_table(own);
  });
}

Result<double> log_rate(const CpuPair& cpus, uint64_t batches) {
  return run_connected_pair(cpus, [batches](const ConnectedSide& own) {
    return own.side.number() == 0 ? append_to_log(own, batches) : serve_log(own);
  });
}

Result<double> file_append_rate(const CpuPair& cpus, uint64_t batches) {
  return run_pair(cpus, [batches](Side& side) {
    return side.number() == 0 ? append_to_file(side, batches) : Status::ok_status();
  });
}

}  // namespace verbena::bench::baselines
