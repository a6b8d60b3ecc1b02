// A front-end of hashtable_kill_test, in a process that can be killed. Usage:
// hashtable_peer_process PORT JOURNAL, with the job's secret in VERBENA_TEST_SECRET.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/hashtable/journal.h"
#include "tests/support/peer_process.h"

namespace verbena::hashtable_test {
namespace {

class Worker {
 public:
  Worker(Hashtable& table, Journal& journal, const Task& task)
      : table_(table),
        journal_(journal),
        random_(run_seed() + task.number),
        number_(task.number),
        dies_after_us_(task.dies_after_us) {}

  void run() {
    Waiter waiter;
    while (load(journal_.go) == 0) waiter.idle();
    if (dies_after_us_ > 0) die_soon();
    while (table_.status().ok() && (next_ < Journal::kMostCalls || table_.pending() > 0)) {
      while (next_ < Journal::kMostCalls && post()) {
      }
      const uint32_t replies = table_.poll([this](const HashtableReply& reply) { take(reply); });
      settle();
      replies > 0 ? waiter.progress() : waiter.idle();
    }
    // What is left is published by those that live, and lost by the others.
    if (dies_after_us_ == 0 && table_.flush().ok()) settle();
    while (dies_after_us_ > 0) sleep_ns(1'000'000);
  }

 private:
  using Kind = test::MapOperation::Kind;

  // By a signal whose default action ends the process: none of its code runs any more.
  void die_soon() const {
    signal(SIGALRM, SIG_DFL);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
    itimerval timer{};
    timer.it_value.tv_usec = dies_after_us_;
    setitimer(ITIMER_REAL, &timer, nullptr);
  }

  bool post() {
    if (table_.pending() == table_.pending_limit()) return false;
    Journal::Entry& entry = journal_.entries[next_];
    entry.kind = static_cast<Kind>(random_.below(4));
    entry.key = random_.below(kKeys);
    entry.value = (number_ + 1) * Journal::kMostCalls + next_;
    const uint64_t kept = table_.statistics().hot_kept;
    const std::string key = std::to_string(entry.key);
    const std::string value = fmt::format("{0}:{0}:{0}", entry.value);
    // First the journal: a call of which nothing is known must not have happened.
    store(entry.begin_ns, now_ns());
    PostResult posted = PostResult::kFailed;
    switch (entry.kind) {
      case Kind::kSearch:
        posted = table_.post_search(key, next_);
        break;
      case Kind::kInsert:
        posted = table_.post_insert(key, value, next_);
        break;
      case Kind::kUpdate:
        posted = table_.post_update(key, value, next_);
        break;
      case Kind::kRemove:
        posted = table_.post_remove(key, next_);
    }
    if (posted != PostResult::kPosted) return false;
    if (table_.statistics().hot_kept > kept) kept_.push_back(next_);
    ++next_;
    return true;
  }

  // Those that are published now.
  void settle() {
    const uint64_t since_ns = table_.unpublished_since_ns();
    std::erase_if(kept_, [&](uint64_t number) {
      Journal::Entry& entry = journal_.entries[number];
      const bool is_safe = entry.reply_ns != 0 && entry.reply_ns < since_ns;
      if (is_safe) store(entry.end_ns, now_ns());
      return is_safe;
    });
  }

  void take(const HashtableReply& reply) {
    Journal::Entry& entry = journal_.entries[reply.token];
    entry.succeeded = reply.outcome == HashtableOutcome::kDone ? 1 : 0;
    if (reply.outcome == HashtableOutcome::kFull) std::abort();  // there is room for all keys
    if (entry.kind == Kind::kSearch && entry.succeeded != 0) {
      entry.value = std::strtoull(std::string(reply.value).c_str(), nullptr, 10);
      if (reply.value != fmt::format("{0}:{0}:{0}", entry.value)) entry.value = 1;  // torn
    }
    // A call that ended with its answer is noted so in this order: who is killed in between has not
    // been answered before the call happened.
    const uint64_t at_ns = now_ns();
    if (std::find(kept_.begin(), kept_.end(), reply.token) == kept_.end()) {
      store(entry.end_ns, at_ns);
    }
    store(entry.reply_ns, at_ns);
    store(journal_.count, journal_.count + 1);
  }

  Hashtable& table_;
  Journal& journal_;
  Random random_;
  const uint64_t number_;
  const uint32_t dies_after_us_;
  uint64_t next_ = 0;
  std::vector<uint64_t> kept_;  // calls that were answered before they were published
};

Status run(uint16_t port, const JobSecret& secret, Journal& journal) {
  using rpc_test::kTimeoutNs;
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, control.receive_value<Task>(kTaskTag, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(rpc_test::test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  const HashtableFormat format = table_format(task.area != Area::kCold);
  const HashtableOptions options = table_options(task.area);
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           open_region(device, domain, control,
                                       hashtable_region_options(format, task.pending, options)));
  VERBENA_ASSIGN_OR_RETURN(auto table, Hashtable::open(*region, options));
  Worker(*table, journal, task).run();
  store(journal.hot, table->statistics().hot_hits);
  store(journal.kept, table->statistics().hot_kept);
  return table->close();
}

int run_main(int argc, char** argv) {
  const auto with_journal = [&](uint16_t port, const JobSecret& secret) -> Status {
    const int file = open(argv[2], O_RDWR | O_CLOEXEC);
    Journal* const journal = map_journal(file);
    close(file);
    if (journal == nullptr)
      return Status(StatusCode::kInvalidArgument, "the second argument is no journal");
    return run(port, secret, *journal);
  };
  return test::run_peer(argc, argv, with_journal, 1, /*arguments=*/2);
}

}  // namespace
}  // namespace verbena::hashtable_test

int main(int argc, char** argv) { return verbena::hashtable_test::run_main(argc, argv); }
