// A hashtable on soft0 and its front-ends in one process, for tests.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "src/remote/region_for_test.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {

// So that tests with a hot area need few operations.
inline constexpr HashtableOptions kSoonHot = {
    .hot_modifications = 4, .hot_after = 2, .hot_patience = 4};

class TableForTest {
 public:
  struct FrontEnd {
    remote::RegionForTest::Opened region;
    std::unique_ptr<Hashtable> table;

    Hashtable& operator*() { return *table; }
    Hashtable* operator->() { return table.get(); }
  };

  explicit TableForTest(const HashtableFormat& format)
      : format_(format), region_({.size_bytes = test::must(hashtable_bytes(format))}) {
    test::must(format_hashtable(memory(), format));
  }

  remote::RegionForTest& region() { return region_; }
  std::span<char> memory() { return {region_->data(), region_->size_bytes()}; }
  FrontEnd open(uint32_t pending = 1, const HashtableOptions& options = kSoonHot) {
    FrontEnd end{region_.open(hashtable_region_options(format_, pending, options)), nullptr};
    test::must(end.region.region.status());
    end.table = test::must(Hashtable::open(*end.region, options));
    return end;
  }

 private:
  const HashtableFormat format_;
  remote::RegionForTest region_;
};

// "12" or so, filled up to `bytes`.
inline std::string text_of(uint64_t number, size_t bytes = 0) {
  std::string text = std::to_string(number);
  while (text.size() < bytes) text += static_cast<char>('a' + (number + text.size()) % 26);
  return text;
}

}  // namespace verbena::hashtable
