#include "src/bench/load/callgrind_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr const char* kPoll = R"(# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 17
cmd:  /proc/16/exe bench-node
part: 4
thread: 3

desc: I1 cache: 
desc: Timerange: Basic block 9 - 40
desc: Trigger: Client Request: verbena-poll responder 3

positions: line
events: Ir
summary: 130

ob=/usr/bin/verbena
fl=/src/poll.cc
fn=poll(int)
12 20
+3 5
cob=/lib/libc.so.6
cfi=/src/copy.cc
cfn=copy(char*)
calls=2 7
14 100
* 5
fi=/src/inlined.h
-1 1
fe=/src/poll.cc
12 4

fn=copy(char*)
7 100

totals: 135
)";

TEST(CallgrindDump, CountsWhatEachFunctionDoesItself) {
  const std::optional<CallgrindDump> dump = parse_callgrind_dump(kPoll);
  ASSERT_TRUE(dump);
  EXPECT_EQ(dump->side, Side::kResponder);
  EXPECT_EQ(dump->messages, 3u);
  EXPECT_THAT(dump->instructions_by_function,
              ElementsAre(Pair("copy(char*)", 100), Pair("poll(int)", 35)));
  EXPECT_EQ(dump->instructions(), 135u);
}

TEST(CallgrindDump, IsOnlyOfPolls) {
  std::string text = kPoll;
  const std::string reason = "Client Request: verbena-poll responder 3";
  for (const char* other :
       {"Program termination", "Client Request: verbena-poll nobody 3", "verbena-poll",
        "Client Request: verbena-poll responder", "Client Request: verbena-poll responder x"}) {
    std::string changed = text;
    changed.replace(changed.find(reason), reason.size(), other);
    EXPECT_FALSE(parse_callgrind_dump(changed)) << other;
  }
  EXPECT_FALSE(parse_callgrind_dump(""));
  EXPECT_FALSE(parse_callgrind_dump("nonsense\n1 2\n"));
}

}  // namespace
}  // namespace verbena::bench
