// Random work requests on soft0 against a reference model.
//
//   plan, life, generator   what happens: from a seed
//   model                   what has to come of it
//   world                   how members, processes or threads, agree and wait for each other
//   objects, posting        verbs
//   books, member           carrying out, and comparing
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft/process.h"
#include "tests/soft_model/generator.h"
#include "tests/soft_model/member.h"
#include "tests/soft_model/world.h"

namespace verbena::soft_model {
namespace {

using soft_test::Child;
using soft_test::ChildRole;
using soft_test::Link;

// What a child has to know of its life.
struct Order {
  uint64_t seed;
  Setting setting;
  uint32_t member;
};

VERBENA_TEST_CHILD(member) {
  const auto order = link.get<Order>();
  const Life life = make_life(order.seed, order.setting);
  ProcessWorld world(link);
  Member member(world, life, order.member);
  member.run();
  return 0;
}

// Longer than members are patient: what they print tells more.
constexpr int kSilenceMs = 600'000;

// Members that are processes; stops and continues some, and kills the victim.
class Processes {
 public:
  Processes(uint64_t seed, const Setting& setting)
      : life_(make_life(seed, setting)), random_(seed ^ 0x6b696c6c) {
    for (uint32_t i = 0; i < life_.members.size(); ++i) {
      children_.push_back(std::make_unique<Child>("member"));
      children_.back()->link().put(Order{seed, setting, i});
    }
  }

  void run() {
    while (exchange_once()) {
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  // False once they have ended.
  bool exchange_once() {
    disturb();
    std::vector<uint32_t> awaited;
    for (uint32_t i = 0; i < children_.size(); ++i) {
      if (!is_dead_ || i != life_.victim) awaited.push_back(i);
    }
    const size_t living = awaited.size();
    Notices notices{};
    size_t ended = 0;
    // From whoever comes first: one that has failed is noticed while others still wait for it.
    while (!awaited.empty()) {
      const size_t at = next_readable(awaited);
      if (testing::Test::HasFailure()) return false;
      const uint32_t member = awaited[at];
      awaited.erase(awaited.begin() + static_cast<ptrdiff_t>(at));
      if (receive(member, notices[member])) continue;
      ++ended;
      EXPECT_EQ(children_[member]->wait(), 0) << "member " << member;
      // The others are killed with their Child.
      if (testing::Test::HasFailure()) return false;
    }
    if (ended > 0) {
      EXPECT_EQ(ended, living) << "some ended before the others";
      return false;
    }
    for (uint32_t i = 0; i < children_.size(); ++i) {
      if (!is_dead_ || i != life_.victim) children_[i]->link().put(notices);
    }
    if (notices[0].begins_last != 0 && life_.victim != kNobody) kill_victim();
    return true;
  }

  size_t next_readable(const std::vector<uint32_t>& members) const {
    std::vector<pollfd> links;
    for (const uint32_t i : members) {
      links.push_back({.fd = children_[i]->link().descriptor(), .events = POLLIN, .revents = 0});
    }
    int ready = 0;
    while ((ready = poll(links.data(), links.size(), kSilenceMs)) < 0 && errno == EINTR) {
    }
    EXPECT_GT(ready, 0) << "the members are silent";
    if (ready <= 0) return 0;
    size_t at = 0;
    while (links[at].revents == 0) ++at;
    return at;
  }

  // False if the member ends instead.
  bool receive(uint32_t i, Notice& notice) {
    Link& link = children_[i]->link();
    char byte;
    if (recv(link.descriptor(), &byte, 1, MSG_PEEK) <= 0) return false;
    notice = link.get<Notice>();
    return true;
  }

  // Whoever is stopped goes on as if nothing had been.
  void disturb() {
    if (random_.below(6) != 0) return;
    const uint64_t which = random_.below(children_.size());
    if (is_dead_ && which == life_.victim) return;
    sleep_ns(random_.below(2'000'000));
    children_[which]->signal(SIGSTOP);
    sleep_ns(random_.below(5'000'000));
    children_[which]->signal(SIGCONT);
  }

  void kill_victim() {
    const bool stopped = random_.below(4) == 0;
    sleep_ns(random_.below(random_.below(2) == 0 ? 1'000'000 : 20'000'000));
    if (stopped) {
      children_[life_.victim]->signal(SIGSTOP);
      sleep_ns(random_.below(5'000'000));
    }
    children_[life_.victim]->kill();
    EXPECT_EQ(children_[life_.victim]->wait(), 128 + SIGKILL) << "the victim ended by itself";
    is_dead_ = true;
  }

  const Life life_;
  Random random_;
  std::vector<std::unique_ptr<Child>> children_;
  bool is_dead_ = false;
};

// Joins the registry, and leaves it.
VERBENA_TEST_CHILD(visitor) {
  const test::Node node;
  link.put(true);
  return 0;
}

std::set<std::string> registry_files() {
  const std::string directory =
      std::string(getenv("VERBENA_RUNTIME_DIR")) + "/verbena-" + std::to_string(geteuid());
  std::set<std::string> names;
  std::error_code none_yet;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none_yet)) {
    names.insert(entry.path().filename());
  }
  return names;
}

void run_processes(const Setting& setting, size_t lives) {
  const std::set<std::string> before = registry_files();
  Random random(run_seed());
  for (size_t life = 0; life < soft_test::iterations(lives); ++life) {
    Processes(random.next(), setting).run();
    if (testing::Test::HasFailure()) return;
  }
  // Who comes next removes what killed ones have left.
  {
    Child visitor("visitor");
    visitor.link().get<bool>();
    EXPECT_EQ(visitor.wait(), 0);
  }
  for (const std::string& name : registry_files()) {
    EXPECT_TRUE(before.contains(name) || name == "lock" || name.starts_with("counters."))
        << name << " is left";
  }
}

TEST(SoftModelThreadsTest, DoWhatTheModelDoes) {
  Random random(run_seed());
  for (size_t number = 0; number < soft_test::iterations(24); ++number) {
    const Life life = make_life(random.next(), {});
    const auto members = static_cast<uint32_t>(life.members.size());
    ThreadWorld world(members);
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < members; ++i) {
      threads.push_back(
          start_thread("member", [&world, &life, i] { Member(world, life, i).run(); }));
    }
  }
}

TEST(SoftModelProcessesTest, DoWhatTheModelDoes) { run_processes({}, 24); }

TEST(SoftModelProcessesTest, SurvivorsDoWhatTheModelDoes) {
  run_processes({.rounds = 3, .with_victim = true}, 40);
}

}  // namespace
}  // namespace verbena::soft_model
