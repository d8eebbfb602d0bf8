"""Frequent words, word endings and letters of languages that share a script.

The data of `language`: short function words (what a text in the language can
hardly avoid), frequent endings where words carry the grammar, and the letters
beyond the common ones. Apostrophes separate: "l'eau" is l and eau.
"""

# Latin script. English first: it wins a tie.
LATIN_WORDS = {
  'en': """the of and to in is that it was for on are as with his they at be
    this have from or had by but not what all were we when your can said there
    use an each which she do how their if will up other about out many then
    them these so some her would make like him into has look more go see no way
    could people than been its who now my made over did down only you i he don
    t s re ve ll isn doesn our me just because very most any should where after
    also being here why does must may every own through much""",
  'es': """de la que el en y los del se las por un para con no una su al lo
    como más pero sus le ya o este sí porque esta entre cuando muy sin sobre
    también me hasta hay donde quien desde todo nos durante todos uno les ni
    contra otros ese eso ante ellos esto mí antes algunos qué unos yo otro es
    son está ser fue han era tiene puede así cada mi tu te usted él nuestro esa
    estos hace hacer bien ahora después parte tiempo solo aquí he hemos debe
    mientras aunque pueden""",
  'pt': """de a o que e do da em um para é com não uma os no se na por mais as
    dos como mas foi ao ele das tem à seu sua ou ser quando muito há nos já
    está eu também só pelo pela até isso ela entre era depois sem mesmo aos ter
    seus quem nas me esse eles estão você tinha foram essa num nem suas meu às
    minha são pode isto esta este uns nossa nosso""",
  'fr': """de la le et les des en un du une que est pour qui dans a par plus
    pas au sur ne se ce il sont avec ou son lui nous comme mais elle si leur on
    y sa cette ces ont été être fait aux je vous tout même bien peut sans c d l
    qu j n s m deux très mon ma mes où donc quand aussi votre notre tu te était
    cela ça après avant""",
  'de': """der die und in den von zu das mit sich des auf für ist im dem nicht
    ein eine als auch es an werden aus er hat dass sie nach wird bei einer um
    am sind noch wie einem über einen so zum war haben nur oder aber vor zur
    bis mehr durch man sein wurde wenn können ich wir ihr kann mein dein uns
    mir hier diese dieser dieses sehr schon was doch jetzt immer""",
  'it': """di e il la che in un a per è una sono mi ho si lo ha le i con non ma
    cosa come su al da del della dei delle nel nella gli più anche questo
    questa se perché quando io tu lui lei noi voi loro suo sua essere stato era
    o ci alla dalla sul sulla tutto tutti molto dopo così c l d uno dal ed ogni
    mio mia può hanno fare ancora dove solo""",
  'nl': """de en van ik te dat die in een hij het niet zijn is was op aan met
    als voor had er maar om hem dan zou of wat mijn men dit zo door over ze
    zich bij ook tot je mij uit der daar haar naar heb hoe heeft hebben deze u
    want nog zal me zij nu ge geen omdat iets worden toch al waren veel meer
    doen toen moet ben zonder kan hun dus alles onder ja wij ons werd wordt
    kunnen jij jouw onze bent""",
  'sv': """och det att i en jag hon som han på den med var sig för så till är
    men ett om hade de av icke mig du henne då sin nu har inte hans honom
    skulle hennes där min man ej vid kunde något från ut när efter upp vi dem
    vara vad över än dig kan sina här ha mot alla under någon eller allt mycket
    sedan ju denna själv detta åt utan varit hur ingen mitt ni bli blev oss din
    dessa några deras mina samma vilken er sådan vår blir också bara""",
  'da': """og i jeg det at en den til er som på de med han af for ikke der var
    mig sig men et har om vi min havde ham hun nu over da fra du ud sin dem os
    op man hans hvor eller hvad skal selv her alle vil blev kunne ind når være
    dog noget ville jo deres efter ned skulle denne end dette mit også under
    have dig anden hende mine alt meget sit sine vor mod disse hvis din nogle
    hos blive mange ad bliver hendes været jer sådan bare nogen brug bruge
    andet først sidste både får går gør kommer måtte nej mens hver hvert uden
    fordi siden igen muligt forkert følgende indeholder gennem endnu""",
  'no': """og i jeg det at en et den til er som på de med han av ikke der så
    var meg seg men ett har om vi min mitt ha hadde hun nå over da ved fra du
    ut sin dem oss opp man kan hans hvor eller hva skal selv sjøl her alle vil
    bli ble blitt kunne inn når være kom noen noe ville dere deres kun ja etter
    ned skulle denne for deg si sine sitt mot å meget hvorfor dette disse uten
    hvordan ingen din ditt blir samme hvilken hvilke sånn inni mellom vår hver
    hvem vors hvis både bare fordi før mange også slik vært finnes bør bruk
    bruke annet først siste får går gjør kommer nei mens hvert siden igjen
    mulig følgende inneholder gjennom ennå""",
  'fi': """ja on ei se että hän oli ovat joka mutta kun niin kuin myös jos tai
    minä sinä me te he tämä ne nämä olla ole en et olen olet olemme hänen sen
    sitä siitä tässä mitä mikä kuka missä koska vain jo nyt sitten vielä jotka
    jonka ennen jälkeen kanssa ollut olisi voi voit kaikki kaikkien hyvin hyvä
    enemmän kuten sekä eli eikä minun sinun niitä niiden tämän tätä paljon yksi
    kaksi aina usein siksi vaan ilman oman""",
  'pl': """i w nie na z do to że się jest o jak za od po ale co tak czy tym być
    dla są jego przez przy lub oraz ze już tylko może jej był była było ich
    który która które jako gdy aby bo mnie mi ja ty on ona my wy oni ten ta te
    tego tej jeśli ma mam mają bardzo także więc nawet kiedy bez pod nad przed
    między sobie swoje też gdzie jednak każdy wszystko""",
  'cs': """a v se na je že o s z do i to jako za pro ve by si k po které který
    jsem jsou ale byl tak od nebo jeho bylo která však být může při až také jen
    už není co když ze než má byla pokud jejich protože jsme tím mezi více
    podle aby před ještě tento tato toto můj moje kde proto velmi této nich
    byly jste vám nám každý""",
  'sk': """a v sa na je že o s z do i to ako za pre vo by si k po ktoré ktorý
    som sú ale bol tak od alebo jeho bolo ktorá však byť môže pri až tiež len
    už nie čo keď zo než má bola ak ich pretože sme tým medzi viac podľa aby
    pred ešte tento táto toto môj moje kde preto veľmi tejto nich boli ste vám
    nám každý iba""",
  'hr': """i u je se na da za od su a s o koji što ne kao to iz bi će sam ili
    ali do po nije samo biti koja koje bilo bio te ako kako može još ima prema
    između kada gdje zbog nakon smo ste ja ti on ona mi vi oni njegov njihov
    ovaj ova ovo taj svi sve više već vrlo također jer pri kod sa tako bez
    prije treba neki""",
  'sl': """in je v se na da za so ki od po pa z ne kot s bi tudi ni še ali iz
    do pri o sem kako lahko bil bila bilo to ter k če samo več že zaradi med
    kar ko nekaj jih smo ste jaz ti on ona mi vi oni njegov njihov ta te tega
    vendar ker vse zelo pred biti ima kjer ampak brez moj""",
  'hu': """a az és hogy nem is egy ez meg csak de el van volt mint ha már még
    ki le azt vagy ezt fel én te ő mi ti ők minden lehet akkor kell pedig mert
    nagyon nekem neki aki ami amely ahol itt ott most mit így úgy sem után
    közötti között által szerint való lesz vannak voltak arra erre ezek azok
    jól majd több sok saját tud""",
  'ro': """de și în a la cu pe nu că o un să este se din care mai pentru au lui
    fi ce sunt ca am dar sau fost al ale el ea eu tu noi voi ei ele prin dacă
    după când cum foarte între acest această acestea acesta lor sa său era are
    avea poate până fără doar toate tot unde despre într ne vă îți meu mea cât
    fiecare""",
  'tr': """ve bir bu da de için ile o çok ne gibi daha olarak en var ama ben
    sen biz siz onlar kadar sonra olan ki mi mı mu mü değil her ya veya ise hem
    şey bunu şu benim senin onun bizim göre önce nasıl neden çünkü ancak kendi
    tüm iki olduğu olduğunu oldu olur yok hiç bana sana ona zaman bazı böyle
    fakat ayrıca ardından nedeniyle bile artık""",
  'vi': """và của là có được cho không một trong người các những với này đã để
    khi đến từ ở cũng như về ra nhiều vào lại tôi bạn anh chị em nó họ chúng ta
    rất sẽ đang hay hoặc nhưng vì nếu thì mà bởi sau trước trên dưới hơn nhất
    gì làm việc năm ngày thể phải đó đây còn bị theo thế nào con nước cùng qua
    việt đi""",
  'id': """yang dan di itu dengan untuk tidak ini dari dalam akan pada juga
    saya ke karena tersebut bisa ada mereka lebih telah kita atau sudah oleh
    sebagai adalah dapat kami anda dia harus tetapi bahwa orang seperti menjadi
    hanya banyak sangat jika ketika apa saat kepada antara hari tahun satu dua
    belum sedang setelah agar bukan lagi para secara masih semua sendiri bagi
    namun maka""",
  'sw': """na ya wa kwa ni katika za la kuwa cha hii si au kama pia watu yake
    hiyo huo lakini kutoka baada sana wake ili hivyo mimi wewe yeye sisi ninyi
    wao hizo yote kila mwa vya pa ndani juu chini bila kabla sasa bado tu moja
    mbili jambo hata ambao ambayo ambaye nini nani wapi lini kwamba basi huu
    hawa hao yangu yako yetu yao mtu siku mwaka kuhusu hakuna kuna ndiyo hapana
    habari asante""",
  'et': """ja on ei et see oli ta kui ka mis ma aga kes oma siis ning nii või
    ole seda tema mida selle veel juba ainult sest mitte nad me te sa olen oled
    nende kuid välja ära pärast enne koos üks kaks kõik väga palju olnud siin
    seal ise meie teie minu sinu peab võib saab iga kus kuidas miks""",
  'lv': """un ir ar no uz par kas ka lai bet vai to tas tā nav arī bija pie kā
    viņš viņa es tu mēs jūs viņi šis šī ja pēc līdz ļoti kad tikai savu var būt
    vairāk tiek pirms gan jau kur jo esmu esi esam mana tavs mūsu jūsu visi
    katrs vēl tomēr bez""",
  'lt': """ir yra kad į iš su kaip tai ar bet už nuo buvo jis ji jie tik dar
    apie prie per po labai jo jos jų aš tu mes jūs šis ši tas ta kuris kuri kai
    jau taip pat ne nėra gali būti daugiau nes jei mano tavo mūsų visi
    kiekvienas kur todėl prieš""",
  'ca': """de la i el que a en un per amb no una és els les del al es se ha com
    més però o si seu seva això aquest aquesta també ser són quan molt jo tu
    ell ella nosaltres vosaltres l d n s hi ho pel tot tots tota entre sobre
    sense fins perquè on ja així només cada mateix dels meu meva té han van""",
  'tl': """ang ng sa na ay mga at ko ito mo ka hindi para ako kung siya ni may
    lang din rin niya si po isang pero naman kami tayo sila nila namin natin
    kanyang ating aming kanilang mayroon wala dahil upang habang bago kapag ano
    sino saan kailan bakit paano doon dito iyon iyan lahat dapat maging tulad
    nang""",
}
# Letters beyond a-z. A letter that is none of a language's speaks against it.
LATIN_LETTERS = {
  'en': 'éïñç',
  'es': 'áéíóúüñ¿¡',
  'pt': 'áàâãçéêíóôõúü',
  'fr': 'àâæçéèêëîïôœùûüÿ',
  'de': 'äöüß',
  'it': 'àèéìíòóù',
  'nl': 'éëïóöüè',
  'sv': 'åäö',
  'da': 'æøå',
  'no': 'æøå',
  'fi': 'äöåšž',
  'pl': 'ąćęłńóśźż',
  'cs': 'áčďéěíňóřšťúůýž',
  'sk': 'áäčďéíĺľňóôŕšťúýž',
  'hr': 'čćđšž',
  'sl': 'čšž',
  'hu': 'áéíóöőúüű',
  'ro': 'ăâîșțşţ',
  'tr': 'çğıöşüâîû',
  'vi': 'ăâđêôơưàảãáạằẳẵắặầẩẫấậèẻẽéẹềểễếệìỉĩíịòỏõóọồổỗốộờởỡớợùủũúụừửữứựỳỷỹýỵ',
  'id': 'é',
  'sw': '',
  'et': 'äöõüšž',
  'lv': 'āčēģīķļņšūž',
  'lt': 'ąčęėįšųūž',
  'ca': 'àçéèíïóòúü',
  'tl': 'ñ',
}
LATIN_ENDINGS = {
  'en': 'ing tion ness ight ould ough ally ment ship',
  'es': 'ción iones mente ando iendo idad aron',
  'pt': 'ção ções mente ando endo idade aram nho nha',
  'fr': 'tion ment eaux eux aient oire elle ique ées eur',
  'de': 'ung ungen lich isch keit heit schen chen icht ische',
  'it': 'zione zioni mente ando endo ità aggio ezza ella oni',
  'nl': 'ing ijk heid lijk aar isch oor eeld',
  'sv': 'ning arna erna lig ande het skap',
  'da': 'ning erne lig ende hed heden else elsen tion tioner sion ede igt',
  'no': 'ning ene lig ende het heten else elsen sjon sjoner sjonen',
  'fi': 'ssa ssä sta stä lla llä lle sti nen seen ksi vat vät inen mme aan ään',
  'pl': 'ego ych ość ania enie nie owa owy ski sze ami ach',
  'cs': 'ého ých ost ání ení ový ský ům ách ami',
  'sk': 'ého ých osť anie enie ový ský om ách ami',
  'hr': 'anje enje ost oga ima ski nja ije ama',
  'sl': 'anje enje ost ega ih ski nja jo ami',
  'hu': 'ban ben nak nek ság ség tól ből ról unk ünk ott ett hoz',
  'ro': 'ție ții ului lor rea ească ilor uri ate tele',
  'tr': 'lar ler dır dir nın nin ında inde lık lik yor dan den mak mek',
  'vi': 'nh ng',
  'id': 'kan nya ang ungan atan aan',
  'sw': 'isha wezi ani ini oni eni ana aji sha',
  'et': 'mine sse ast ude dus lik vad mise ele ist',
  'lv': 'ība šana umu iem ām ija ums ajā',
  'lt': 'imas umas ius ais ose tis inis iau ojo',
  'ca': 'ció cions ment ant itat ar ments atge',
  'tl': 'ang ong ing han hin',
}
CYRILLIC_WORDS = {
  'ru': """и в не на я что он с как это по но они к у за из от так же бы вы мы
    ты она его её ее все был была были для то о или если только уже когда при
    может есть нет ещё еще чтобы который которые этого этот очень также более
    мне меня вас нас их ему быть во со до под над без можно""",
  'uk': """і в не на я що він з як це по але вони до у за із від так ж би ви ми
    ти вона його її всі був була були для то о або якщо тільки вже коли при
    може є немає ще щоб який які цього цей дуже також більше мені мене вас нас
    їх йому бути під над без можна та й де чи""",
  'bg': """и в не на аз че той с как това по но те към у за из от така ще би
    вие ние ти тя него неговия всички беше бяха для то или ако само вече когато
    при може е няма още да който които този тази много също повече ми ме ви ни
    им му бъде във със до под над без се са си сме съм като което след""",
  'sr': """и у не на ја да он са како то по али они ка за из од тако би ви ми
    ти она његов сви био била су је или ако само већ када при може има нема још
    који које овај ова врло такође више вас нас их му бити до под над без се
    смо сте што као бих због после овде унесите молимо треба сваки""",
  'mk': """и во не на јас дека тој со како тоа по но тие кон за из од така ќе
    би вие ние ти таа неговиот сите беше беа или ако само веќе кога при може е
    нема уште да кој кои овој оваа многу исто повеќе ми ме ви им му биде до под
    над без се сум си што ги го ја ова немаат секој нов нова""",
  'be': """і ў не на я што ён з як гэта па але яны да у за ад так жа бы вы мы
    ты яна яго яе усе быў была былі для або калі толькі ўжо пры можа ёсць няма
    яшчэ каб які якія гэтага гэты вельмі таксама больш мне мяне вас нас іх яму
    быць пад над без можна""",
  'kk': """және бұл бір үшін мен де да ол деп бар болып осы оның сол әр бірақ
    керек жоқ емес біз сіз олар сен қалай туралы кейін дейін арқылы өз бойы
    барлық көп өте тағы себебі сондай""",
}
CYRILLIC_LETTERS = {
  'ru': 'ёъыэйщ',
  'uk': 'іїєґйщ',
  'bg': 'ъйщ',
  'sr': 'јљњђћџ',
  'mk': 'јљњѓќѕџ',
  'be': 'іўёыэй',
  'kk': 'әғқңөұүһійыэёщъ',
}
CYRILLIC_ENDINGS = {
  'ru': 'ого его ый ий ая ться ность ение ание ых ами',
  'uk': 'ого ий ться ність ення ання их ами ої ою',
  'bg': 'ият ите ата ето ост ение ане ния та то',
  'sr': 'ање ење ост ога ски има ија',
  'mk': 'ите ата ото ост ање ење от ија',
  'be': 'ага ыя цца насць енне анне ых амі',
  'kk': 'лар лер дың дің ған ген тар тер нда нде',
}
ARABIC_WORDS = {
  'ar': """في من على إلى أن هذا هذه التي الذي عن مع كان ما لا هو هي أو كل قد
    بعد بين ذلك كما لم لن إن كانت يكون تم قبل عند حيث حتى غير أي ثم لكن نحن أنا
    أنت هم منذ خلال يمكن أيضا جدا و ليس هناك""",
  'fa': """و در به از که این است را با برای آن یک خود تا کرد بر هم نیز شده می
    ها های اما یا بود شود شد باید ما من تو او آنها هر دیگر وی اگر پس بین چه کند
    کنند کنید دارد دارند نمی هستند همه خیلی هست باشد""",
  'ur': """کے میں کی ہے اور سے کا کو اس نے پر یہ ہیں کہ ایک بھی نہیں تھا لیے کر
    جو تو ہو وہ ہم آپ ان اپنے کیا ساتھ بعد تھے تھی گیا جا رہا رہے سکتے سکتا لئے
    ہوتا ہوتی بہت کچھ مگر جب تک یا کرنے دیا""",
}
ARABIC_LETTERS = {
  'ar': 'ةىيكأإؤئء',
  'fa': 'پچژگکیأئء',
  'ur': 'پچژگکیٹڈڑںےہھۓئأء',
}
ARABIC_ENDINGS = {
  'ar': 'ات ون ين ية ها هم',
  'fa': 'های ها ند ان تر ترین',
  'ur': 'یں وں تا تی نے ئی',
}
DEVANAGARI_WORDS = {
  'hi': """है के में की का से को और यह हैं पर कि एक नहीं भी ने इस लिए वह था थी
    थे तो ही या कर हो जो गया अपने साथ कुछ हम आप मैं उस उन करने किया जा सकते
    सकता बहुत रहा रहे होता होती इसके लेकिन जब तक क्या कैसे करें""",
  'mr': """आहे आणि या हे ते की तर च्या मध्ये होते होता होती आहेत नाही एक हा ही
    त्या त्याचा त्यांच्या मी तू आम्ही तुम्ही आपण करून केले केली साठी पण किंवा
    सर्व काही अशा असे असतो असते म्हणून म्हणजे तसेच येथे तिथे खूप आपल्या करा
    झाले झाला झाली सुद्धा जे जर नवीन असल्यास असणे गेले गेला येथील तुमच्या माझे
    माझी आता कसे काय तो ती त्यांनी यांनी नये नको पाहिजे शकता शकते येते""",
  'ne': """छ र को मा लाई हो पनि छन् यो भने गर्न गरेको गरेका थियो एक तर के यस
    त्यो म हामी तपाईं उनी उनले भएको भएका हुन हुने गर्ने गर्छ सक्छ लागि तथा वा
    बाट साथै धेरै सबै अनि हुन्छ छैन गरे जस्तै रूपमा नेपाल थिए होस अथवा भन्दा
    हुनुपर्छ गरेर भए गरी छु छौं उनको उहाँ यहाँ त्यहाँ कसरी किन अब पछि अघि सम्म
    मात्र नै पर्छ""",
}
DEVANAGARI_LETTERS = {'hi': '\u093c\u0901', 'mr': 'ळऱॲ', 'ne': '\u0901'}
DEVANAGARI_ENDINGS = {
  'hi': 'ों ें ता ती ने ना ियों कर',
  'mr': 'च्या ांच्या ला ून मध्ये ाचे ाची ाने ासाठी ण्यासाठी ण्याची ण्याचे वर ल्या ायला',
  'ne': 'को का मा ले लाई हरू हरु छ न्छ एको बाट नुहोस् नुहोस पर्छ ेको ेका र्नु उनु',
}
