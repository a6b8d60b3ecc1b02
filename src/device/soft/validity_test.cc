#include "src/device/soft/validity.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

TEST(ValidityTest, TellsLivingObjectsFromOthers) {
  ibv_context context{};
  auto* domain = new Domain;
  domain->verbs.context = &context;
  EXPECT_EQ(check_valid<Domain>(&domain->verbs), EINVAL);  // not made yet
  make_valid(*domain, &context);
  EXPECT_EQ(check_valid<Domain>(&domain->verbs), 0);
  EXPECT_EQ(check_valid<Domain>(static_cast<ibv_pd*>(nullptr)), EINVAL);

  retire(domain);
  EXPECT_EQ(check_valid<Domain>(&domain->verbs), EINVAL);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(domain->verbs.context, &context);
  EXPECT_NE(std::string(last_error()).find("no protection domain"), std::string::npos);
}

TEST(ValidityTest, ObjectsAreOfTheProcessThatMadeThem) {
  ibv_context context{};
  Region region;
  region.verbs.context = &context;
  make_valid(region, &context);
  forks.fetch_add(2);  // as in a child's child
  EXPECT_EQ(check_valid<Region>(&region.verbs), EPERM);
  EXPECT_NE(std::string(last_error()).find("forked"), std::string::npos) << last_error();
  make_valid(region, &context);
  EXPECT_EQ(check_valid<Region>(&region.verbs), 0);
  forks.fetch_sub(2);
}

TEST(ValidityTest, WritesBeyondTheHeadAreNoticed) {
  ibv_context context{};
  Region region;
  region.verbs.context = &context;
  make_valid(region, &context);
  ASSERT_EQ(check_valid<Region>(&region.verbs), 0);
  memset(static_cast<void*>(&region.verbs), 0, sizeof(region.verbs));
  EXPECT_EQ(check_valid<Region>(&region.verbs), EINVAL);
  region.verbs.context = &context;
  memset(static_cast<void*>(&region), 0xff, sizeof(region.verbs) + 1);
  region.verbs.context = &context;
  EXPECT_EQ(check_valid<Region>(&region.verbs), EINVAL);
}

// As of a kernel, which finds objects by their handle.
TEST(ValidityTest, HandlesAreThoseOfTheirObjects) {
  ibv_context context{};
  Cq queue;
  queue.verbs.context = &context;
  queue.verbs.handle = 7;
  make_valid(queue, &context);
  EXPECT_EQ(check_valid<Cq>(&queue.verbs), 0);
  queue.verbs.handle = 8;
  EXPECT_EQ(check_valid<Cq>(&queue.verbs), ENOENT);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_NE(std::string(last_error()).find("no completion queue has this handle"),
            std::string::npos)
      << last_error();
  EXPECT_EQ(check_living<Cq>(&queue.verbs), 0);
  queue.verbs.handle = 7;
  EXPECT_EQ(check_valid<Cq>(&queue.verbs), 0);
}

TEST(ValidityTest, ManyObjectsLaterAShellIsStillOne) {
  ibv_context context{};
  Cq* first = new Cq;
  make_valid(*first, &context);
  retire(first, [](Cq& shell) { shell.overrun = true; });
  for (int i = 0; i < 60; ++i) {
    auto* later = new Cq;
    later->verbs.context = &context;
    make_valid(*later, &context);
    EXPECT_EQ(check_valid<Cq>(&later->verbs), 0);
    retire(later);
  }
  EXPECT_EQ(check_valid<Cq>(&first->verbs), EINVAL);
  EXPECT_TRUE(first->overrun);
}

// Destroyed after everything that belongs to a thread.
struct FailsAtTheEnd {
  ~FailsAtTheEnd() {
    const bool refused = check_valid<Domain>(static_cast<ibv_pd*>(nullptr)) == EINVAL;
    const bool explained =
        std::string(last_error()).find("no protection domain") != std::string::npos;
    // Without a search for leaks, which a sanitizer makes even in _exit().
    syscall(SYS_exit_group, refused && explained ? 0 : 2);
  }
};

TEST(ValidityTest, StaticObjectsMayFailWhileTheProcessEnds) {
  EXPECT_EXIT(
      {
        static const FailsAtTheEnd last;
        fail(EINVAL, std::string(100, 'x'));
        std::exit(1);  // the status is then what the object makes of it
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace verbena::soft
